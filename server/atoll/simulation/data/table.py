"""Rows of each class for each participant, as numbers, as a text table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import classes_of
from atoll.simulation.data.partitioners.parts import Indices, Parts
from atoll.simulation.data.picture import By, heat_map, thumbnail
from atoll.text.figures import counted
from atoll.text.printable import printable

SHOWN = 20
"""Default number of participants in a text table."""


class HoldingsValues(TypedDict):
    """The result of ``Holdings.values``: plain values for ``json.dumps``."""

    classes: list[str]
    participants: int
    rows: int
    held: int
    sizes: list[int]
    counts: list[list[int]]


@dataclass(frozen=True, eq=False)
class Holdings:
    """Rows of each class for each participant; ``holdings`` counts them.

    Attributes:
        classes: the labels that occur, sorted, as text.
        counts: int64 [population, classes].
        rows: rows of the whole data set.
        held: rows that at least one participant holds.
    """

    classes: tuple[str, ...]
    counts: Indices
    rows: int
    held: int

    @property
    def sizes(self) -> Indices:
        """Rows of each participant, int64 [population]."""
        sizes: Indices = self.counts.sum(axis=1)
        return sizes

    @property
    def shares(self) -> NDArray[np.float64]:
        """Share of each class in a participant's rows, float64 [population, classes]; 0 for one without rows."""
        return self.counts / np.maximum(self.sizes, 1)[:, None]

    def values(self) -> HoldingsValues:
        """Everything as plain values, for JSON."""
        return {
            "classes": list(self.classes),
            "participants": len(self.counts),
            "rows": self.rows,
            "held": self.held,
            "sizes": self.sizes.tolist(),
            "counts": self.counts.tolist(),
        }

    def table(self, limit: int = SHOWN) -> str:
        """A text table: one line per participant, the first ``limit`` of them, and the sum of all."""
        shown = self.counts[:limit]
        lines = [("participant", *map(printable, self.classes), "rows")]
        lines += [_line(str(number), row) for number, row in enumerate(shown)]
        if len(shown) < len(self.counts):
            lines.append((f"… {len(self.counts) - len(shown)} more", *[""] * (len(self.classes) + 1)))
        lines.append(_line("all", self.counts.sum(axis=0)))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(_aligned(line, widths) for line in lines)

    def heat_map(self, by: By = "rows") -> str:
        """The picture as an ``<svg>`` element: participants down, classes across; it follows light and dark themes.

        Args:
            by: shade cells by the number of ``rows``, or by the ``share`` of the participant's rows.
        """
        return heat_map(self.classes, self.counts, by)

    def thumbnail(self, by: By = "rows") -> str:
        """The cells of the heat map without labels, as a small ``<svg>`` element."""
        return thumbnail(self.counts, by)

    def __str__(self) -> str:
        return f"{counted(len(self.counts), 'participant')} hold {self.held:,} of {self.rows:,} rows\n{self.table()}"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return self.heat_map()


def holdings(parts: Parts, labels: ArrayLike) -> Holdings:
    """Count each participant's rows by class.

    Args:
        parts: rows of each participant.
        labels: integers or texts [rows], of the data set that the parts divide.

    Raises:
        PartitionError: if a part names a row that ``labels`` does not have.
    """
    classes = classes_of(labels)
    counts = np.zeros((len(parts), len(classes)), np.int64)
    seen = np.zeros(classes.codes.size, np.bool_)
    for number, part in enumerate(parts):
        if part.size and not 0 <= part.min() <= part.max() < seen.size:
            raise PartitionError(
                f"participant {number} holds row {part.max()}, but there are {seen.size} labels: give the labels of "
                "the data set that was divided"
            )
        counts[number] = np.bincount(classes.codes[part], minlength=len(classes))
        seen[part] = True
    return Holdings(tuple(str(name) for name in classes.names), counts, seen.size, int(seen.sum()))


def _line(name: str, counts: Indices) -> tuple[str, ...]:
    return (name, *(str(count) if count else "·" for count in counts), str(counts.sum()))


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    first, *numbers = (
        text.ljust(width) if not at else text.rjust(width)
        for at, (text, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join((first, *numbers)).rstrip()
