"""Foundations of all other packages: records, errors, files and processes.

These modules can be imported without importing torch or Ray.
"""
