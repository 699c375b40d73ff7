"""Simulations with the deployment's own code: the same participants, jobs, rounds and bits, in virtual time.

``Federation(participants=make, population=1000).run(Job(rounds=50, cohort=Cohort(size=20)), initial=weights)``
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from atoll.simulation.collector import paused

if TYPE_CHECKING:
    from atoll.operator.comparison import Comparison
    from atoll.operator.history import History
    from atoll.server.jobs import (
        Aggregation,
        Cohort,
        Evaluation,
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedYogi,
        Job,
        JobFileError,
        Privacy,
        Retention,
        Stop,
        Straggler,
    )
    from atoll.simulation.behaviour import Behaviour
    from atoll.simulation.cluster import RayWorkers
    from atoll.simulation.errors import (
        EvaluateError,
        ParticipantError,
        RunFailedError,
        SetupError,
        SimulationError,
        WorkerError,
    )
    from atoll.simulation.evaluating import NotFiniteWarning
    from atoll.simulation.federation import Federation
    from atoll.simulation.result import Result
    from atoll.simulation.sweeping import compare, sweep
    from atoll.simulation.workers import Workers

__all__ = [
    "Aggregation",
    "Behaviour",
    "Cohort",
    "Comparison",
    "EvaluateError",
    "Evaluation",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedYogi",
    "Federation",
    "History",
    "Job",
    "JobFileError",
    "NotFiniteWarning",
    "ParticipantError",
    "Privacy",
    "RayWorkers",
    "Result",
    "Retention",
    "RunFailedError",
    "SetupError",
    "SimulationError",
    "Stop",
    "Straggler",
    "WorkerError",
    "Workers",
    "compare",
    "sweep",
]

_PLACES = {
    "atoll.operator.comparison": ("Comparison",),
    "atoll.operator.history": ("History",),
    "atoll.simulation.behaviour": ("Behaviour",),
    "atoll.simulation.cluster": ("RayWorkers",),
    "atoll.simulation.errors": (
        *("EvaluateError", "ParticipantError", "RunFailedError", "SetupError", "SimulationError", "WorkerError"),
    ),
    "atoll.simulation.evaluating": ("NotFiniteWarning",),
    "atoll.simulation.federation": ("Federation",),
    "atoll.simulation.result": ("Result",),
    "atoll.simulation.sweeping": ("compare", "sweep"),
    "atoll.simulation.workers": ("Workers",),
}
_PLACE_OF = {name: module for module, names in _PLACES.items() for name in names}


def _loaded(name: str) -> Any:
    """Load public names on first use, so that ``atoll --help`` does not load the simulation."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with paused():  # avoids three full collections over PyTorch's objects, a third of the import time
        found = getattr(import_module(_PLACE_OF.get(name, "atoll.server.jobs")), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:
    __getattr__ = _loaded  # hidden from type checkers, which would otherwise accept any name


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
