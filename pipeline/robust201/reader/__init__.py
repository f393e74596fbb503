"""Reading of exported and published datasets: `RobustnessDataset` and the formats of its files."""
