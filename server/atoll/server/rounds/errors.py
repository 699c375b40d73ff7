"""Errors of the round engine, by the party at fault.

::

    RoundError
    ├── PolicyError        the operator's: a setting that is out of range
    ├── IllegalTransition  the shell's: an event that cannot happen in this situation
    └── MismatchedSum      the shell's: a sum was taken over another set than the round's

A refused event changes nothing: the state passed to `step` is still the run's, and the event must not be persisted.
"""


class RoundError(Exception):
    """Base of every error that the round engine raises."""


class PolicyError(RoundError, ValueError):
    """A policy value that is out of range; names the setting, the value and what is allowed."""


class IllegalTransition(RoundError):  # noqa: N818 - the field's term, as in h11's tables
    """An event that the transition table neither lists nor ignores in the run's situation.

    Attributes:
        run_id: the run that refused the event.
        situation: where that run stands, as in the transition table.
        event: the event's `kind`.
    """

    def __init__(self, run_id: str, situation: str, event: str, detail: str = "") -> None:
        self.run_id = run_id
        self.situation = situation
        self.event = event
        suffix = f": {detail}" if detail else ""
        super().__init__(f"run {run_id}: event {event!r} is not allowed in {situation}{suffix}")


class MismatchedSum(RoundError):  # noqa: N818 - reads as what happened, beside IllegalTransition
    """The shell summed another set of updates than the one that the round closed with."""
