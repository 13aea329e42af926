"""Records on standard input and output: `levada produce` and `levada consume`."""
