"""Downloads of data: the registry of names and checksums, resumable transfers, and unpacking."""
