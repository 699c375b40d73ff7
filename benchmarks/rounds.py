"""Rounds of a tiny model over loopback TLS between real processes, with participants that do not train.

What is timed is everything between two releases: draw, invitation, download, upload, durable commit, sum, new model.
"""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.federation import federation
from benchmarks.figures import Figure
from benchmarks.options import Options

ROUNDS_PER_S = 20.0
OVERHEAD_S = 0.1
ELEMENTS = 2560


def run(options: Options) -> list[Figure]:
    """Rate and slowest rounds of a 10 KB model with two clients."""
    clients, rounds = options.or_else(options.clients, 2, 2), options.or_else(options.rounds, 200, 5)
    with federation(clients=clients, tls=options.tls is not False) as place:
        gaps = place.run(elements=ELEMENTS, rounds=rounds, clients=clients).seconds
    rate = 1.0 / statistics.mean(gaps)
    slowest = float(np.percentile(gaps, 99))
    command = options.command("rounds")
    return [
        Figure.at_least(f"rounds of 10 KB, {clients} clients", rate, "rounds/s", ROUNDS_PER_S, command),
        Figure.at_most(f"round of 10 KB, {clients} clients, 99th percentile", slowest, "s", OVERHEAD_S, command),
    ]
