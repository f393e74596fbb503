"""Random damage of every kind of file, and what each reader and verb says of it: `python -m tests.mutations`."""
