"""Studies: trainings and sweeps that answer one question together, and their results beside printed ones."""
