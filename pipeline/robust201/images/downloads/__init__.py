"""Downloads of data: the registry of names and checksums, transfers, and unpacking."""
