"""From a sweep YAML to units, parts and bundles: identity, cost, and what the inputs' hashes are."""
