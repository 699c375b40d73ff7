"""``python -m benchmarks``. A regular package: some libraries install one of this name, which would hide a bare folder."""
