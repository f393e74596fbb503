"""Networks as attacks and measures see them: logits and gradients, in arithmetic and batches that fit the device."""
