"""The command line: `levada NOUN VERB`."""
