"""A partition as its leader runs it: validation, append, transactions, verification."""
