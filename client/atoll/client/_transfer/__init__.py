"""Models down, updates up: verified, resumable, chunk by chunk."""
