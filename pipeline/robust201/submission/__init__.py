"""Submission of sweeps and trainings to clusters: the shipped files, access to Ray heads, Ray jobs and Slurm arrays."""
