"""Implementation of `tasks.corruptions.generator`: one module per family of corruptions."""
