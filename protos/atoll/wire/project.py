"""How an operator's call names its project."""

PROJECT = "atoll-project"
"""Metadata key of the project that a call is about; without it see ``control.proto``."""
