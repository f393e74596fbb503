"""Reading of sweep and training YAMLs, and planning: units with content-derived ids, costs, parts and bundles."""
