"""`[aggregation]`: how updates are combined."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from atoll.server.jobs.section import JobTable
from atoll.settings.section import Hint
from atoll.wire.encoding import Encoding

MAX_FROZEN = 256
"""Maximum number of patterns, equal to the limit of participants."""
MAX_FRAGMENTS = 64

_QUANTISED = {"int8": Encoding.INT8_BLOCK, "int4": Encoding.INT4_BLOCK}


class Aggregation(JobTable):
    """How updates are combined."""

    weighting: Annotated[
        Literal["examples", "uniform"],
        Field(
            description="`examples`: an update counts by its number of examples. `uniform`: all updates count the same."
        ),
    ] = "examples"
    max_weight: Annotated[
        int,
        Field(
            ge=1,
            le=2**32,
            description="With `examples`: the largest number of examples that one participant may count for.",
        ),
    ] = 100_000
    max_abs: Annotated[
        float,
        Field(
            ge=2.0**-24,
            le=2.0**20,
            description="Maximum magnitude of an element of an update; an update with a larger element is rejected. A "
            "smaller value makes the sum more precise.",
        ),
        Hint(allowed="a power of two from 2^-24 to 2^20"),
    ] = 32.0
    averaged: Annotated[
        tuple[str, ...],
        Field(
            strict=False,  # TOML gives lists
            max_length=256,
            description="Tensors (names, with `*` and `?`) that take the plain mean under any server optimiser: "
            "statistics such as batch norm's, which must not accumulate momentum. A private job is refused if its "
            "model has any, since noise would ruin them.",
        ),
        Hint(allowed="a list of names or patterns"),
    ] = ("*running_mean", "*running_var")
    frozen: Annotated[
        tuple[str, ...],
        Field(
            strict=False,  # TOML gives lists
            max_length=MAX_FROZEN,
            description="Tensors (names, with `*` and `?`) that are sent with the model and never changed: "
            "participants neither train nor send them, and they get no noise. They are last in the run's models. At "
            "submission, a pattern that matches no tensor is refused, and so are patterns that together match all.",
        ),
        Hint(allowed="a list of names or patterns", default="none"),
    ] = ()
    fragments: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_FRAGMENTS,
            description="Number of parts into which the model is divided. Each training round updates one of them, in "
            "turn (streaming DiLoCo): participants train the whole model and send that part of the update. Parts are "
            "whole tensors in the order of the file, with nearly equal numbers of elements, so there are at most as "
            "many parts as tensors. Weights and server optimiser state of the other parts do not change.",
        ),
    ] = 1
    encoding: Annotated[
        Literal["float32", "bfloat16", "float16", "float64", "int8", "int4"],
        Field(
            description="Encoding of updates on the wire. 16-bit encodings halve the bytes and round the update. "
            "`int8` and `int4` send integers with a scale for every 128 elements, which is 8.25 and 4.25 bits per "
            "element; the error of an element is at most 1/254 and 1/14 of its block's largest magnitude. "
            "Participants that do not support the encoding are not invited.",
        ),
    ] = "float32"

    @field_validator("max_abs")
    @classmethod
    def _power_of_two(cls, value: float) -> float:
        if math.frexp(value)[0] != 0.5:
            raise ValueError("not a power of two")
        return value

    @property
    def wire_encoding(self) -> Encoding:
        """The encoding that participants must use."""
        return _QUANTISED.get(self.encoding) or Encoding[self.encoding.upper()]

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Refuse a weight bound without weights."""
        if self.weighting == "uniform":
            yield from self.unused(("max_weight",), 'aggregation.weighting is "uniform"')
