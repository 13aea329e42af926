"""The loops over records, compiled with numba."""
