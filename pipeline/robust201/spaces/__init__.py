"""Architecture spaces: indices, strings, isomorphism classes and networks."""
