"""Studies: training runs and sweeps that answer one question together, compared with published numbers."""
