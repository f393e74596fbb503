"""Attacks on images, one module per attack, and the code that runs attacks and checks the perturbed images."""
