"""Readers and writers of every API message, compiled from kio's message classes."""
