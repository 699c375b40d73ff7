"""``python -m benchmarks``. A regular package, because opacus installs one of this name, which would hide a folder."""
