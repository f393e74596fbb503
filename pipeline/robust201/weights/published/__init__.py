"""Readers of all published weight formats."""
