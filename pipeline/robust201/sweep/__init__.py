"""Planning of sweeps: protocols, units, their parts, and the difference between a plan and a listing of results."""
