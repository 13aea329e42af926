"""Fast paths: frequent group requests, decoded in place."""
