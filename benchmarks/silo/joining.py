"""``atoll silo join`` whose ranks record their exchanges: ``python -m benchmarks.silo.joining JOB.toml …``."""

from __future__ import annotations

from atoll.datacenter.cli import join

if __name__ == "__main__":
    join._MODULE = "benchmarks.silo.exchanging"  # noqa: SLF001  # what its ranks run
    join.join()
