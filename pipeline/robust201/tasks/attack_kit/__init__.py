"""Building blocks of attacks: samples and restarts, batches, random numbers, and the network under attack."""
