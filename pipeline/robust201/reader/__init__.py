"""Reading of exported and published datasets: `RobustnessDataset`, and the formats of a dataset's files."""
