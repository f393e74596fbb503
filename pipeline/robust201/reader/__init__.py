"""Reading an exported or published dataset: `RobustnessDataset` and the forms of its files."""
