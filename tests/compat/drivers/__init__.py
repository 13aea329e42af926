"""One driver for each client that Levada promises to serve; see `base` for the vocabulary."""
