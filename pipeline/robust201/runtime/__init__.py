"""A run: what is missing is computed, by whom, what happens when one of them dies, and what is reported of it."""
