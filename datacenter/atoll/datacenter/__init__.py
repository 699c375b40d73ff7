"""Training jobs over the many GPUs of one silo."""
