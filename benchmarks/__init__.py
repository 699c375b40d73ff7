"""``python -m benchmarks``. A regular package: opacus installs one of this name, which would hide a bare folder."""
