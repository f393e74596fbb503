"""The dataset of a sweep: rows read from its shards, and the published JSON layout."""
