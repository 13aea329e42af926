"""Decisions as pure machines: no clock, no chance, no input or output; time is an argument."""
