"""Shapes of the APIs whose newest version dropped fields that handlers still need; see `levada.wire.versions`."""
