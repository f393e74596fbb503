"""Neural architecture search on a dataset's results: methods, objectives and tables, without torch."""
