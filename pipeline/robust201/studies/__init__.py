"""Studies: trainings and sweeps that answer one question together, compared with printed numbers."""
