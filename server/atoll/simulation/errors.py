"""The errors of a simulation.

::

    SimulationError
    ├── SetupError           the request cannot be simulated; also a ValueError
    ├── ParticipantError     a participant's code failed under ``strict=True``
    ├── EvaluateError        ``evaluate`` failed
    ├── DataError            data cannot be divided or loaded; see ``atoll.simulation.data.errors``
    ├── RunFailedError       the run ended without its rounds
    └── WorkerError          a worker process is gone
"""


class SimulationError(Exception):
    """Any error of a simulation; says what is wrong and what to do."""


class SetupError(SimulationError, ValueError):
    """The job or its settings cannot be simulated."""


class ParticipantError(SimulationError):
    """The code of a participant failed under ``strict=True``.

    Its cause is the exception itself if the participant ran in this process.

    Attributes:
        participant: its name.
        round: number of the round, from 0.
        traceback: the traceback of the participant's code, as text.
    """

    def __init__(self, participant: str, number: int, traceback: str) -> None:
        self.participant = participant
        self.round = number
        self.traceback = traceback
        super().__init__(f"participant {participant} failed in round {number + 1}:\n{traceback}")


class EvaluateError(SimulationError):
    """The function ``evaluate`` raised, or did not return figures. Its cause is the exception.

    Attributes:
        traceback: of the function's code, as text.
    """

    def __init__(self, said: str, traceback: str) -> None:
        self.traceback = traceback
        super().__init__(f"evaluate raised {said}; correct it and run again")


class RunFailedError(SimulationError):
    """The run failed, was cancelled, or cannot continue; the message has the server's reason."""


class WorkerError(SimulationError):
    """A worker process ended while the run needed it."""


def raised_at(traceback: str) -> tuple[str, ...]:
    """The code locations of a traceback, and the type of the exception."""
    frames = (line.strip() for line in traceback.splitlines() if line.startswith("  File "))
    return *frames, raised_in(traceback).partition(":")[0]


def raised_in(traceback: str) -> str:
    """The line of a traceback that has the exception's type and the first line of its message."""
    lines = traceback.rstrip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[frames[-1] :] if frames else lines
    return next((line for line in after if not line.startswith(" ")), "")
