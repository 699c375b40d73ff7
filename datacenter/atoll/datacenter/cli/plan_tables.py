"""Tables of the planner."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from atoll.datacenter.cli.output import print_table
from atoll.datacenter.plan.memory import CONTEXT_BYTES
from atoll.datacenter.plan.step_time import StepTime, group_of
from atoll.datacenter.sizing.formula import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.datacenter.plan.prediction import Prediction
    from atoll.datacenter.plan.verify import Compared

_GIB = 2**30
_PARTS = [field.name for field in fields(StepTime)]


def print_ranking(found: Sequence[Prediction], title: str) -> None:
    """Print one line for each layout."""
    columns = ("#>", "layout", "memory GiB>", "step s>", "tokens/s/GPU>", "MFU %>", "bubble %>", "collectives %>")
    print_table(columns, [_ranked(number, one) for number, one in enumerate(found, 1)], title=title)


def print_details(one: Prediction) -> None:
    """Print memory, time and collectives of one layout, by part."""
    memory = [(name, f"{part.value / _GIB:.2f}") for name, part in one.peak.memory.parts().items()]
    memory += [("context (assumed)", f"{CONTEXT_BYTES / _GIB:.2f}"), ("together", f"{one.memory.value / _GIB:.2f}")]
    has = one.machine.usable_bytes / _GIB
    print_table(
        ("memory", "GiB>"),
        memory,
        title=f"\nMemory of the fullest rank (pp {one.peak.rank}, moment: {one.peak.moment}), of {has:.1f} GiB",
    )
    print_table(
        ("step", "time>", "%>"),
        [(name, readable(getattr(one.time, name)), f"{_share(one, name):.1f}") for name in _PARTS],
        title=f"\nStep: {readable(one.step)}",
    )
    if collectives := [_collective(one, number) for number in range(len(one.messages()))]:
        print_table(
            ("axis", "collective", "what", "ranks>", "nodes>", "calls>", "bytes of a step>"),
            collectives,
            title="\nWhat that rank sends and receives in a step (bytes of whole buffers)",
        )


def print_comparison(compared: Sequence[Compared]) -> None:
    """Print predicted values beside counted ones."""
    print_table(
        ("", "predicted bytes>", "counted bytes>", "off %>", "bound %>", ""),
        [
            (
                one.what,
                f"{one.predicted:,.0f}",
                f"{one.counted:,.0f}",
                f"{100 * one.off:+.2f}",
                f"{100 * one.within:.0f}",
                "good" if one.good else "BAD",
            )
            for one in compared
        ],
        title="\nAgainst one step of the first rank on the fake backend",
    )


def _ranked(number: int, one: Prediction) -> tuple[str, ...]:
    return (
        str(number),
        one.layout.describe(),
        f"{one.memory.value / _GIB:.1f}",
        f"{one.step.value:.3f}",
        f"{one.tokens_per_s.value:,.0f}",
        f"{100 * one.mfu.value:.1f}",
        f"{_share(one, 'bubble'):.1f}",
        f"{_share(one, 'collectives') + _share(one, 'sharding') + _share(one, 'sends'):.1f}",
    )


def _share(one: Prediction, part: str) -> float:
    """Return the part as a percentage of the step."""
    value: float = getattr(one.time, part).value
    return 100 * value / one.step.value


def _collective(one: Prediction, number: int) -> tuple[str, ...]:
    message = one.messages()[number]
    group = group_of(message.axis, one.layout.dims, one.machine.rates.ranks_per_node)
    return (
        message.axis,
        message.kind,
        message.what,
        str(group.ranks),
        str(group.nodes),
        f"{message.count.value:,.0f}",
        readable(message.total),
    )
