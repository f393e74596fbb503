"""Golden files, and the scripts that generate them from published sources."""
