"""A simulation's request, as values to compare with another call's."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
from blake3 import blake3

from atoll.client import Policy
from atoll.server.jobs import JobSpec
from atoll.settings import to_toml
from atoll.simulation.behaviour import Behaviour, Presence
from atoll.simulation.initial import Initial
from atoll.simulation.population import Population

_SHOWN = 3
_TASKS = 64
"""Number of participants whose task durations are compared, if a function returns them."""
_ROUNDS = "job.job.rounds"
_FIXED = ("job.privacy.", "job.statistics.")
"""Job sections that fix the number of rounds: noise is computed for it, or the query determines it."""
_FILE = "job.model.initial"
"""Keys left out of the comparison, which includes the model itself."""


def asked_for(
    job: JobSpec,
    population: Population,
    model: Initial,
    behaviour: Behaviour,
    *,
    participants: Callable[..., Any],
    evaluate: Callable[..., Any] | None,
    examples: int | Sequence[int] | None,
    policy: Policy | None,
) -> dict[str, Any]:
    """The settings that determine the bits of a simulation, flattened; functions are compared by name."""
    settings = _flat("job", tomllib.loads(to_toml(job)))
    settings.pop(_FILE, None)
    shapes = {f"initial[{one.name!r}]": f"{one.dtype.name.lower()}{list(one.shape)}" for one in model.layout.tensors}
    return {
        "atoll's version": version("atoll"),
        **settings,
        "population": len(population),
        "names of the population": _digest("\n".join(population.names).encode()),
        "participants": _named(participants),
        "examples": examples if isinstance(examples, int | None) else _digest(np.array(examples, np.int64).tobytes()),
        "policy": {one.name: _named(getattr(policy, one.name)) for one in fields(policy)} if policy else None,
        "evaluate": _named(evaluate),
        **shapes,
        "the values of initial": _digest(*model.pieces()),
        **_behaviour(behaviour, population),
    }


def further_rounds(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a request has more rounds than an earlier one and can extend its run."""
    more = int(now[_ROUNDS]) > int(before[_ROUNDS])
    return more and not any(name.startswith(_FIXED) for name in now)


def with_rounds_of(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The earlier request, with the new number of rounds."""
    return {**before, _ROUNDS: now[_ROUNDS]}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the differences between two requests; empty if there are none."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    shown = [f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
        shown.append(f"{len(names) - _SHOWN} more differ")
    return "; ".join(shown)


def _behaviour(behaviour: Behaviour, population: Population) -> dict[str, Any]:
    speed: Any = behaviour.speed
    if callable(speed):
        speed = [behaviour.task_s(number, 0) for number in range(min(_TASKS, len(population)))]
    spells = None
    if behaviour.availability is not None:
        spells = _digest(np.array(sorted(Presence(behaviour, population).changes()), np.float64).tobytes())
    return {
        "behaviour.speed": speed if isinstance(speed, float | int) else f"of digest {_digest(repr(speed).encode())}",
        "behaviour.availability": spells,
        "behaviour.dropout": behaviour.dropout,
        "behaviour.back_s": behaviour.back_s,
        "behaviour.seed": behaviour.seed,
    }


def _flat(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(f"{name}.{key}", inner)
    return found


def _named(value: Any) -> str | None:
    """A name that is the same in the next process: that of a function or class, or of an object's class."""
    if value is None or not callable(value):
        return None if value is None else repr(value)
    found = value.func if isinstance(value, partial) else value
    where = found if hasattr(found, "__qualname__") else type(found)
    return f"{where.__module__}.{where.__qualname__}"


def _digest(*pieces: bytes | memoryview) -> str:
    digest = blake3()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest(8)
