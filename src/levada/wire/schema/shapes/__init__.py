"""Shapes of APIs whose newest version dropped fields that handlers still need (see `versions`)."""
