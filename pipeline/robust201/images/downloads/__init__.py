"""Downloads of data: a registry of names and checksums, resumed transfers, and unpacking."""
