"""Tests of robust201."""
