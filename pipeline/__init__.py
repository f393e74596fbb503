"""robust201: robustness evaluation of the whole NAS-Bench-201 architecture space."""

__version__ = "0.1.0"
