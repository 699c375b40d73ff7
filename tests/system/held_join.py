"""``atoll silo join`` with ranks that stop where a test asks: ``python held_join.py JOB.toml …``, see ``held_rank``."""

from __future__ import annotations

import atoll.datacenter.cli.join as command

if __name__ == "__main__":
    command._MODULE = "held_rank"
    command.join()
