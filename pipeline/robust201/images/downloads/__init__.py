"""Files of data from elsewhere: a registry of names and checksums, resumed downloads, unpacking."""
