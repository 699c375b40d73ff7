"""``[data]``, ``[batch]``, ``[optimiser]``, ``[schedule]``, ``[precision]``: what is learned from, and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.settings import Hint, Section


class DataSection(Section):
    """What is learned from."""

    source: Annotated[
        Literal["stdlib", "tokens", "text", "digits"],
        Field(
            description="`stdlib`: the source text of Python's own standard library, found on every machine. `tokens`: "
            "a token file made by `atoll silo tokens`. `text`: a file or folder of text, tokenised as it streams. "
            "`digits`: handwritten digits, for `vision`."
        ),
    ] = "stdlib"
    path: Annotated[str | None, Field(description="The file or folder, relative to the job file.")] = None
    tokenizer: Annotated[
        str,
        Field(
            min_length=1, description="`bytes`, or the path of a Hugging Face tokenizer.json, relative to the job file."
        ),
        Hint(allowed='"bytes", or the path of a tokenizer.json'),
    ] = "bytes"
    packing: Annotated[
        bool, Field(description="Documents share sequences, end to end; else each starts one of its own.")
    ] = True

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A source without its path, and settings that a source does not read."""
        if self.source in {"tokens", "text"} and self.path is None:
            yield "path", f'is missing; source = "{self.source}" reads one'
        unread = {"stdlib": ("path",), "tokens": ("tokenizer",), "digits": ("path", "tokenizer", "packing")}
        yield from self.unused(unread.get(self.source, ()), f'source = "{self.source}"')


class BatchSection(Section):
    """How much each step sees."""

    sequence: Annotated[int, Field(ge=1, le=1 << 24, description="Tokens of one sequence.")] = 128
    global_batch: Annotated[int, Field(ge=1, le=1 << 24, description="Sequences of one step, over all ranks.")] = 8
    micro_batch: Annotated[int, Field(ge=1, le=1 << 20, description="Sequences of one forward pass on one rank.")] = 1


class OptimiserSection(Section):
    """The optimiser."""

    name: Annotated[Literal["adamw", "sgd"], Field(description="AdamW (Loshchilov and Hutter 2019), or SGD.")] = "adamw"
    lr: Annotated[float, Field(gt=0, description="Peak learning rate.")] = 3e-4
    betas: Annotated[
        tuple[float, float], Field(strict=False, description="Decay of AdamW's first and second moments.")
    ] = (0.9, 0.95)
    epsilon: Annotated[float, Field(gt=0, description="AdamW's epsilon.")] = 1e-8
    momentum: Annotated[float, Field(ge=0, lt=1, description="SGD's momentum.")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="Decay of matrices; vectors are left alone.")] = 0.1
    max_grad_norm: Annotated[
        float | None,
        Field(gt=0, description="Clip the gradient to this norm over all parameters (Pascanu et al. 2013)."),
    ] = 1.0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Moments outside [0, 1), and settings of the other optimiser."""
        if not all(0 <= beta < 1 for beta in self.betas):
            yield "betas", "allowed are two numbers from 0 and below 1"
        if self.name == "adamw":
            yield from self.unused(("momentum",), 'name = "adamw"')
        else:
            yield from self.unused(("betas", "epsilon"), f'name = "{self.name}"')


class ScheduleSection(Section):
    """How the learning rate moves."""

    warmup_steps: Annotated[int, Field(ge=0, description="Steps over which it rises from 0.")] = 0
    decay: Annotated[
        Literal["none", "linear", "cosine"], Field(description="How it falls after that, until the last step.")
    ] = "cosine"
    decay_steps: Annotated[
        int | None,
        Field(ge=1, description="Fall only over this many last steps (warm-up, stable, decay)."),
        Hint(default="all after the warm-up"),
    ] = None
    floor: Annotated[float, Field(ge=0, le=1, description="Where it ends, as a share of the peak.")] = 0.1


class PrecisionSection(Section):
    """Number formats. Parameters, gradients' sums and optimiser states stay float32."""

    compute: Annotated[
        Literal["float32", "bfloat16", "float16", "float8"],
        Field(
            description="Format of matrix products. `float16` scales the loss (Micikevicius et al. 2018, section 3.2); "
            "`float8` needs torchao and a GPU that has it."
        ),
    ] = "float32"
    reduce: Annotated[
        Literal["float32", "bfloat16"], Field(description="Format in which gradients are summed across ranks.")
    ] = "float32"
    initial_scale: Annotated[float, Field(gt=0, description="First scale of the loss (`float16`).")] = 65536.0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A scale that nothing uses."""
        if self.compute != "float16":
            yield from self.unused(("initial_scale",), f'compute = "{self.compute}"')
