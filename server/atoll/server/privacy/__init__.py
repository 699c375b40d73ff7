"""Differential privacy of what is released."""
