"""Training: recipes, data, augmentation, adversarial training, and the loop. Recipes and data do not import torch."""
