"""Group members, one program for each client; `base` declares their operations."""
