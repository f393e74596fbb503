"""What is done with a finished dataset: reading, reporting."""
