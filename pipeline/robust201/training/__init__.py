"""Training of networks: recipes, data, augmentation, the loop and its state."""
