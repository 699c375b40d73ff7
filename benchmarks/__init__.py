"""``python -m benchmarks``. A regular package, since opacus installs one of this name, which would hide a bare folder."""
