"""Building blocks of attacks: samples, restarts, batches, random numbers, logs of steps, and the attacked network."""
