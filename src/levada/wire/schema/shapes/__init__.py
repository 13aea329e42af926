"""Shapes of APIs whose newest version dropped fields that handlers still need, one module each to load on first use."""
