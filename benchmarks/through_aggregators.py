"""Participants behind aggregators compared with the same participants connected directly: bytes sent to the server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.federation import JOB, Federation, federation, write_zeros
from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.scraping import metric
from benchmarks.starting import ATOLL

AGGREGATORS = 2
ELEMENTS, SMOKE_ELEMENTS = 1 << 18, 1 << 14
ROUNDS = 2
SHARE = 0.11
"""Target: two sums of 4 bytes an element are a tenth of twenty updates of 4 bytes."""


@dataclass(frozen=True)
class Course:
    """The released model's name, and the payload bytes of updates and sums that the server received."""

    model: str
    upstream_bytes: float


def figures(options: Options) -> Iterator[Figure]:
    """Whether the models are equal, and the bytes upstream."""
    clients = options.or_else(options.clients, 20, 2)
    elements, command = SMOKE_ELEMENTS if options.smoke else ELEMENTS, options.command("fleet")
    with federation(clients=0) as place:
        direct = _run(place, elements, clients)
    with federation(clients=0) as place:
        through = _run_through(place, elements, clients)
    name = f"{clients} participants through {AGGREGATORS} aggregators"
    same = float(direct.model == through.model)
    yield Figure.at_least(f"{name}: same model as directly (1: yes)", same, "", 1.0, command)
    megabytes, beside = through.upstream_bytes / 1e6, direct.upstream_bytes / 1e6
    if options.smoke:
        yield Figure.stated(f"{name}: updates and sums upstream", megabytes, "MB", command, beside=beside)
        return
    yield Figure.within(f"{name}: updates and sums upstream", megabytes, "MB", command, limit=beside, target=SHARE)


def _run(place: Federation, elements: int, clients: int) -> Course:
    tokens = place.call("token", "new", "--count", str(clients))["tokens"]
    run = _train(place, elements, clients, [tokens])
    uploaded = sum(member["payload_bytes"] for entry in run["rounds"] for member in entry["members"])
    return Course(_model_of(run), uploaded)


def _run_through(place: Federation, elements: int, clients: int) -> Course:
    sites = [_Site(place, f"site-{number}") for number in range(AGGREGATORS)]
    share = -(-clients // AGGREGATORS)
    counts = [min(share, clients - share * number) for number in range(AGGREGATORS)]
    run = _train(place, elements, clients, [site.tokens(count) for site, count in zip(sites, counts, strict=True)])
    return Course(_model_of(run), sum(site.metric("atoll_aggregator_partial_bytes_total") for site in sites))


def _train(place: Federation, elements: int, clients: int, tokens: list[list[str]]) -> dict[str, Any]:
    """Train with participants whose updates depend only on their number."""
    for number, token in enumerate(token for group in tokens for token in group):
        name = f"client-{number}"
        arguments = ["client", "start", "benchmarks.participants:Numbered", "--arg", f"number={number}"]
        arguments += ["--join", token, "--state", str(place.place / name)]
        place.start_process([*ATOLL, *arguments], name)
    (place.place / "job.toml").write_text(JOB.format(rounds=ROUNDS, clients=clients))
    write_zeros(place.place / "init.safetensors", elements)
    run = place.call("run", "submit", str(place.place / "job.toml"))["run"]
    place.command("run", "watch", run)
    shown: dict[str, Any] = place.call("run", "show", run, "--members")
    return shown


def _model_of(shown: dict[str, Any]) -> str:
    return str(shown["run"]["model_blob"])


class _Site:
    """One aggregator."""

    def __init__(self, place: Federation, name: str) -> None:
        self._place = place
        self._name = name
        token = place.call("token", "new", "--kind", "aggregator", "--serves", "127.0.0.1", "--organisation", name)
        reading, writing = os.pipe()
        arguments = ["aggregator", "start", "--port", "0", "--data", str(Path(place.place) / name)]
        arguments += ["--token", token["tokens"][0], "--ready-fd", str(writing)]
        place.start_process([*ATOLL, *arguments], name, keep_open=(writing,))
        os.close(writing)
        with os.fdopen(reading) as ready:
            line = ready.readline()
        if not line:
            raise RuntimeError(f"{name} did not start:\n{place.log(name)[-4000:]}")
        self._facts: dict[str, Any] = json.loads(line)

    def tokens(self, count: int) -> list[str]:
        """Join tokens of its participants."""
        made = self._place.call("token", "new", "--through", self._name, "--count", str(count))
        return [str(token) for token in made["tokens"]]

    def metric(self, name: str) -> float:
        """The value of one of its metrics."""
        return metric(self._facts["metrics"], name)
