"""The transition table as a diagram, for the documentation."""

from dataclasses import fields

from atoll.server.rounds.table import TABLE, Situation


def event_kind(event: type) -> str:
    """The tag of an event class, as in the event log."""
    return next(str(f.default) for f in fields(event) if f.name == "kind")


def state_diagram() -> str:
    """The table as a Mermaid state diagram: one arrow per pair of situations, labelled with the events that take it."""
    labels: dict[tuple[Situation, Situation], list[str]] = {}
    for (here, event), move in TABLE.items():
        for there in move.to:
            if Situation.PAST is not here and there is not here:
                labels.setdefault((here, there), []).append(event_kind(event))
    arrows = [f"    {here} --> {there}: {', '.join(events)}" for (here, there), events in labels.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> new", *arrows, "    ended --> [*]"]) + "\n"
