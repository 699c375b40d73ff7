"""One participant checks in endlessly: the cost for the rounds of the others.

Three runs of the same federation: calm, flooded (from the first refusal on), calm. All processes share this machine,
including the flooder, so its own processor time is part of the figure.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.federation import Federation, federation
from benchmarks.figures import Figure
from benchmarks.flooder import REFUSED, WELCOME
from benchmarks.options import Options

ELEMENTS = 2560
TARGET = 1.5
_END_S = 30.0


def run(options: Options) -> list[Figure]:
    """Mean round with the flood compared with the mean round without, and the number of refusals."""
    clients, rounds = options.or_else(options.clients, 2, 2), options.or_else(options.rounds, 900, 5)
    with federation(clients=clients) as place:

        def mean_s() -> float:
            return statistics.mean(place.run(elements=ELEMENTS, rounds=rounds, clients=clients).seconds)

        before = mean_s()
        answers: dict[str, int] = {}
        with _flood(place, answers):
            flooded = mean_s()
        calm = statistics.mean((before, mean_s()))
    command, refused = options.command("flood"), answers.get(REFUSED, 0)
    if not refused:
        raise RuntimeError(f"no call was refused: {answers}")
    name = f"round of 10 KB, {clients} clients, while another checks in without end"
    return [
        Figure.within(name, flooded, "s", command, limit=calm, target=TARGET),
        Figure.stated("check-ins refused meanwhile", refused, "calls", command),
        Figure.stated("check-ins let in meanwhile", answers.get(WELCOME, 0), "calls", command),
    ]


@contextmanager
def _flood(place: Federation, answers: dict[str, int]) -> Iterator[None]:
    (token,) = place.call("token", "new")["tokens"]
    counts = place.place / "flood.json"
    reading, writing = os.pipe()
    arguments = [sys.executable, "-m", "benchmarks.flooder", token, str(place.place / "flooder"), str(counts)]
    process = place.start_process([*arguments, str(writing)], "flooder", keep_open=(writing,))
    os.close(writing)
    try:
        with os.fdopen(reading) as channel:
            if not channel.readline():
                raise RuntimeError(f"the flooder ended with status {process.wait()}")
        yield
    finally:
        process.terminate()
        process.wait(_END_S)
        answers.update(json.loads(Path(counts).read_text()))
