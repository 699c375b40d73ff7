"""``atoll silo``, without the other commands: ``python -m benchmarks.silo.planning plan …``."""

from __future__ import annotations

from atoll.datacenter.cli import silo

if __name__ == "__main__":
    silo()
