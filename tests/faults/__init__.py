"""Fault injection: sweeps that are killed and must end in the bytes of an undisturbed run."""
