"""Foundations of all other packages: records, errors, files and processes. Importing them needs no torch or Ray."""
