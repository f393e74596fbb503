"""What attacks are built from: samples and restarts, batches, random draws, and the network as a task sees it."""
