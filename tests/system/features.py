"""A run of each kind, which must give the same bits on every way to the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.server.jobs import first_model, parse_job
from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S, window_s
from tests.system.clients import Client
from tests.system.operators import Arrays, Operator, job_toml
from tests.system.reference import MODEL, SIZE

ALL: Mapping[str, object] = {"size": SIZE, "quorum": SIZE, "seed": 4}
PATIENT: Mapping[str, object] = {"report_window_s": 280}
"""No deadline may pass on a busy machine; the carried report comes after a round that closes by its number."""
ADAM: Mapping[str, object] = {"name": "fedadam", "lr": 0.05}
NO_EVALUATION: Mapping[str, object] = {"before_training": False, "final": False}
POPULATION: Mapping[str, object] = {"population": "people", "delta": 1e-5}
TWICE: Mapping[str, object] = {"max_participations": 2, "min_separation": 1}
ADAPTIVE: Mapping[str, object] = {
    **POPULATION,
    **TWICE,
    "noise_multiplier": 2.0,
    "adaptive": {"initial": 1.0, "count_noise": 2.0},
}
STATISTICS = """
[job]
name = "overview"

[cohort]
size = 3

[statistics]
numeric = ["age"]
categories = { label = ["0", "1"] }
"""
NOISED = """bounds = { age = [0.0, 120.0] }
max_rows = 50

[privacy]
population = "rows"
unit = "row"
noise_multiplier = 3.0
delta = 1e-5
"""
Conduct = Callable[[Operator, str, Sequence[Client]], None]


def finished(operator: Operator, run: str, clients: Sequence[Client]) -> None:
    """Wait for the end of a run that needs nothing."""
    del clients
    operator.finished(run)


def carried(operator: Operator, run: str, clients: Sequence[Client]) -> None:
    """Participant 2 reports for round 0 in round 1; its update counts in round 2, which closes with that of 0.

    No other update competes: all others are held until the run ends.
    """
    clients[2].wait("held", run=run, round=0)
    clients[0].wait("held", run=run, round=1)
    clients[2].go()
    clients[2].wait("reported", run=run, round=0, disposition="carried")
    clients[0].go()
    operator.finished(run)


def extended(operator: Operator, run: str, clients: Sequence[Client]) -> None:
    """Extend the run by a round."""
    del clients
    operator.finished(run)
    operator.stub.ExtendRun(control_pb2.ExtendRunRequest(run=run, rounds=1), timeout=WAIT_S)
    operator.until(run, lambda seen: seen.summary.rounds_total == 2, "extended")
    operator.finished(run)


def paused(operator: Operator, run: str, clients: Sequence[Client]) -> None:
    """Pause the run in a round, and resume it."""
    clients[1].wait("held", run=run, round=0)
    operator.pause(run)
    clients[1].go()
    clients[1].wait("reported", "stopped", run=run, round=0)
    operator.resume(run)
    operator.finished(run)


def cancelled(operator: Operator, run: str, clients: Sequence[Client]) -> None:
    """Cancel the run while all members work on it; each is told."""
    for client in clients:
        client.wait("held", run=run)
    operator.cancel(run, "enough")
    for client in clients:
        client.wait("stopped", run=run)


@dataclass(frozen=True)
class Feature:
    """A run, its model, and the actions while it runs.

    Attributes:
        job: with ``{first}`` for the id of participant 0.
    """

    job: str
    model: Arrays = field(default_factory=lambda: MODEL)
    conduct: Conduct = finished


def training(name: str, rounds: int = 2, **sections: Mapping[str, object]) -> str:
    whole: dict[str, Mapping[str, object]] = {
        "cohort": ALL,
        "straggler": PATIENT,
        "optimiser": ADAM,
        **sections,
    }
    tables = {
        f"{section}.{key}": value
        for section, keys in whole.items()
        for key, value in keys.items()
        if isinstance(value, Mapping)
    }
    plain = {
        section: {key: value for key, value in keys.items() if not isinstance(value, Mapping)}
        for section, keys in whole.items()
    }
    return job_toml(job={"name": name, "rounds": rounds, "seed": 3}, **plain, **tables)


def statistics(toml: str) -> Feature:
    section = parse_job(toml).statistics
    assert section is not None
    return Feature(toml, first_model(section))


def private(name: str, rounds: int = 2, **sections: Mapping[str, object]) -> str:
    """A private job in which everyone is in each round, so that two runs have the same noise."""
    whole: dict[str, Mapping[str, object]] = {
        "cohort": {"size": SIZE, "quorum": SIZE, "sampler": "least_recent"},
        "aggregation": {"weighting": "uniform"},
        **sections,
    }
    return training(name, rounds, **whole)


FEATURES: Mapping[str, Feature] = {
    "evaluations": Feature(training("evaluations", 3, evaluation={"before_training": True, "every": 2, "final": True})),
    "required": Feature(training("required", cohort={**ALL, "required": ["acme"]})),
    "int8": Feature(training("int8", aggregation={"encoding": "int8"})),
    "int4": Feature(training("int4", aggregation={"encoding": "int4"})),
    "bfloat16": Feature(training("bfloat16", aggregation={"encoding": "bfloat16"})),
    "frozen": Feature(training("frozen", aggregation={"frozen": ["b"]})),
    "fragments": Feature(
        training("fragments", 4, aggregation={"fragments": 3}, evaluation={**NO_EVALUATION, "every": 2})
    ),
    "carried": Feature(
        training(
            "carried",
            3,
            cohort={
                "size": 2,
                "quorum": 2,
                "over_selection": 1.5,
                "seed": 4,
                "min_available": 2,
                "required": ["{first}"],
            },
            straggler={**PATIENT, "late": "carry"},
            training={"held": "0:2! 1:0! 1:2 2:1 2:2"},
        ),
        conduct=carried,
    ),
    "extended": Feature(training("extended", 1), conduct=extended),
    "paused": Feature(training("paused", training={"held": "0:1!"}), conduct=paused),
    "cancelled": Feature(training("cancelled", training={"held": "0:0 0:1 0:2"}), conduct=cancelled),
    "secret draw": Feature(
        private(
            "secret",
            1,
            cohort={"size": SIZE, "sampler": "poisson", "rate": 1.0},
            straggler={"report_window_s": window_s()},
            privacy={**POPULATION, "noise_multiplier": 2.0, "clip": 1.0},
        )
    ),
    "adaptive clip": Feature(private("adaptive", privacy=ADAPTIVE)),
    "correlated noise": Feature(
        private("tree", privacy={**POPULATION, **TWICE, "noise_multiplier": 2.0, "clip": 1.0, "mechanism": "tree"})
    ),
    "statistics": statistics(STATISTICS),
    "private statistics": statistics(STATISTICS + NOISED),
}


def outcome(operator: Operator, run: str) -> dict[str, Any]:
    """The properties of a run that do not depend on time."""
    shown = operator.show(run)
    return {
        "status": control_pb2.RunStatus.Name(shown.summary.status),
        "reason": shown.summary.reason,
        "rounds": [
            (
                seen.round,
                seen.attempt,
                seen.kind,
                seen.phase,
                seen.total_weight,
                sorted((name, value) for name, value in seen.metrics.items() if not name.endswith("_s")),
                sorted(
                    (one.participant, one.status, one.weight, one.payload_bytes, one.detail) for one in seen.members
                ),
            )
            for seen in shown.rounds
        ],
        "model": operator.model(run),
    }


def played(operator: Operator, feature: Feature, clients: Sequence[Client]) -> dict[str, Any]:
    """Play a feature's run to its end."""
    toml = feature.job.replace("{first}", clients[0].participant)
    run = operator.submit(toml, feature.model)
    feature.conduct(operator, run, clients)
    return outcome(operator, run)
