"""Rounds of a tiny model over loopback TLS between real processes, with participants that do not train.

The timed interval includes everything between two releases: draw, invitation with the model, update, durable report,
sum, charge, new model. Its limit is ``floor``: the same number of plain commits, fsynced files and gRPC round trips.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.federation import federation
from benchmarks.figures import Figure
from benchmarks.floor import Floor, floor
from benchmarks.options import Options

ROUNDS_PER_S = 20.0
OVERHEAD_S = 0.1
MANY = 10
MANY_S = 0.06
"""Targets for a round of 10 KB by number of clients, from release to release."""
ELEMENTS = 2560


def run(options: Options) -> list[Figure]:
    """Rate and slowest rounds of a 10 KB model with two clients, then with ten; or with the requested number."""
    figures = _with_few(options)
    return figures if options.clients is not None else figures + _with_many(options)


def _with_many(options: Options) -> list[Figure]:
    """The cost of each further client: time from release to release, and processor time."""
    rounds, command = options.or_else(options.rounds, 200, 5), options.command("rounds")
    clients = options.or_else(None, MANY, 3)
    with federation(clients=clients, tls=options.tls is not False) as place:
        course = place.run(elements=ELEMENTS, rounds=rounds, clients=clients)
    name, usual = f"10 KB, {clients} clients", statistics.median(course.seconds)
    clients_cpu_s = (course.cpu_s - course.server_cpu_s) / clients
    return [
        Figure.at_most(f"{name}: release to release, median", usual, "s", MANY_S, command),
        Figure.stated(f"{name}: server's processor time of a round", course.server_cpu_s, "s", command),
        Figure.stated(f"{name}: each client's processor time of a round", clients_cpu_s, "s", command),
    ]


def _with_few(options: Options) -> list[Figure]:
    clients, rounds = options.or_else(options.clients, 2, 2), options.or_else(options.rounds, 400, 5)
    repeats = 20 if options.smoke else 200
    before = floor(4 * ELEMENTS, repeats)
    with federation(clients=clients, tls=options.tls is not False) as place:
        course = place.run(elements=ELEMENTS, rounds=rounds, clients=clients)
    plain = Floor.mean([before, floor(4 * ELEMENTS, repeats)])
    gaps, name = course.seconds, f"10 KB, {clients} clients"
    overhead, usual = _overheads(course.rounds), statistics.median(course.seconds)
    command = options.command("rounds")
    return [
        Figure.at_least(
            f"rounds of {name}",
            1.0 / statistics.mean(gaps),
            "rounds/s",
            ROUNDS_PER_S,
            command,
            beside=1.0 / plain.round_s,
        ),
        Figure.at_most(
            f"{name}: overhead of a round, p99",
            _percentile(overhead, 99),
            "s",
            OVERHEAD_S,
            command,
            beside=plain.round_s,
        ),
        Figure.stated(f"{name}: release to release, median", usual, "s", command, beside=plain.round_s),
        Figure.stated(f"{name}: release to release, p99", _percentile(gaps, 99), "s", command),
        Figure.stated("plain SQLite commit (WAL, FULL)", plain.commit_s, "s", command),
        Figure.stated("plain file of 10 KB, fsynced", plain.file_s, "s", command),
        Figure.stated("plain gRPC call of 10 KB", plain.call_s, "s", command),
    ]


def _overheads(rounds: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds from the opening of each round to its release, all of it overhead, as participants do not train."""
    return [float(entry["closed_at"]) - float(entry["opened_at"]) for entry in rounds[1:]]


def _percentile(seconds: Sequence[float], percent: float) -> float:
    return float(np.percentile(seconds, percent))
