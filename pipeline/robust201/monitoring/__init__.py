"""Monitoring of sweeps and trainings: progress, running processes, logs, and checks of a machine's installation."""
