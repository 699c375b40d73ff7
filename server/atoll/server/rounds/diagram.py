"""The transition table as pictures and text, for the documentation and for its tests."""

from dataclasses import fields

from atoll.server.rounds.table import TABLE, Situation


def event_kind(event: type) -> str:
    """The tag of an event's class."""
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


def transition_lines() -> tuple[str, ...]:
    """The table as text, one line per entry: situation, event, where it may lead, handler."""
    lines = []
    for (here, event), move in TABLE.items():
        to = " | ".join(move.to) or "-"
        lines.append(f"{here:<11}{event_kind(event):<18}{to:<48}{move.handler.__name__}")
    return tuple(lines)
