"""The work behind `tasks.corruptions.generator`: one module a family of corruptions."""
