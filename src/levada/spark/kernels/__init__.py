"""Loops over record batches and records, compiled with numba."""
