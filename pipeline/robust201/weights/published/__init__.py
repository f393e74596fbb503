"""Readers of every published weight format."""
