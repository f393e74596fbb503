"""NAS-Bench-201: cells and their names, the network, and its compiled form."""
