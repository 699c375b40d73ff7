"""Simulations that are the deployment: the same participants, jobs, rounds and bits, in virtual time.

``Federation(participants=make, population=1000).run(Job(rounds=50, cohort=Cohort(size=20)), initial=weights)``
"""

from atoll.simulation.collector import paused

with paused():  # three full collections over PyTorch's objects, a third of the time of these imports
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
