"""Benchmarks of silo training: ``python -m benchmarks.silo`` (``make bench-silo``).

On CPUs equality, bytes and memory are claims; speeds are only stated, for they say nothing of GPUs.
"""
