"""Generation of corrupted images. Each family of corruptions has a module."""
