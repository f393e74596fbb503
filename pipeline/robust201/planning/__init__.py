"""Read sweep and training YAMLs, and plan the work that they describe.

A plan consists of units (all results of one network on one dataset under one key), whose ids are hashes of everything
that affects the results. For workers, units are cut into parts and grouped into bundles.
"""
