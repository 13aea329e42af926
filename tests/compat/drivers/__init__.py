"""One driver for each supported client; `base` declares their operations."""
