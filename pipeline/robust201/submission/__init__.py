"""Submit sweeps and training runs to clusters: shipped files, access to Ray heads, Ray jobs, Slurm arrays."""
