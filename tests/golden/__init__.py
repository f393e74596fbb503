"""Golden files, recorded from published or earlier code, and scripts that record or compare them."""
