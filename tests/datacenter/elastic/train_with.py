"""``atoll silo train`` with another program of the ranks: ``python train_with.py MODULE JOB.toml …``."""

from __future__ import annotations

import sys

import atoll.datacenter.cli.train as command

if __name__ == "__main__":
    command._MODULE = sys.argv.pop(1)
    command.train()
