"""Members of groups, one program for each client; see `base` for what they are asked."""
