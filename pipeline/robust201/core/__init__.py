"""Foundations of all folders: records, errors, files, processes; without torch or Ray."""
