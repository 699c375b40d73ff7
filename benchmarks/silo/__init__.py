"""Benchmarks of silo training: ``python -m benchmarks.silo`` (``make bench-silo``).

On CPUs, equality, bytes and memory have targets; speeds do not, because they say nothing about GPUs.
"""
