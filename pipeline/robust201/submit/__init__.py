"""Submission of sweeps and training YAMLs to clusters: Slurm arrays and Ray jobs."""
