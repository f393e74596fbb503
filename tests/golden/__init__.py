"""Golden files, and the scripts that make them from published sources."""
