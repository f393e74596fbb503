"""Building blocks of attacks: samples and restarts, batches, random draws, and the network as attacks use it."""
