"""Building blocks of attacks: samples, restarts, batches, random numbers, and the attacked network."""
