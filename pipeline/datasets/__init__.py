"""Images: one specification a dataset, loaders of every published form, downloads with checksums."""
