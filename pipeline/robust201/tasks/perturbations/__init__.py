"""What is done to images before a network is shown them: one module per kind, one row of the table per key."""
