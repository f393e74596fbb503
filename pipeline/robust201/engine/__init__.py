"""What attacks run on: a network as a model of logits and gradients, in batches that fit its device."""
