"""Neural architecture search on a dataset's results: methods, objectives and tables; NumPy, no torch."""
