"""The participants of ``atoll demo``."""
