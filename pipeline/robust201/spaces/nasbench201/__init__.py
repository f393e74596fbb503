"""NAS-Bench-201: its cells, its network, and that network compiled for speed."""
