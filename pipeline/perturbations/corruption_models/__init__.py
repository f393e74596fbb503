"""The work behind `pipeline.perturbations.corruptions`: one module a family of corruptions."""
