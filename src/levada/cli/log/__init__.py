"""Commands on the data directories of a stopped broker."""
