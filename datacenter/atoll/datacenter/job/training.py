"""``[data]``, ``[batch]``, ``[optimiser]``, ``[schedule]``, ``[precision]``: the training data and how it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.settings import Hint, Section

SOURCES = ("stdlib", "tokens", "text", "digits")
"""Sources of data that are built in."""
_NOT_OURS = ("path", "tokenizer", "packing")
_UNREAD = {
    "stdlib": ("path", "settings"),
    "tokens": ("tokenizer", "settings"),
    "text": ("settings",),
    "digits": (*_NOT_OURS, "document_masks", "settings"),
}
"""Settings that a source does not use; a user's own source uses only ``settings``."""


class DataSection(Section):
    """Training data."""

    source: Annotated[
        str,
        Field(
            pattern=f"^({'|'.join(SOURCES)}|[^:]+:[^:]+)$",
            description="`stdlib`: the source text of Python's standard library, present on every machine. `tokens`: "
            "a token file made by `atoll silo tokens`. `text`: a file or folder of text, tokenised as it streams. "
            "`digits`: handwritten digits, for `vision`. `module:function`: your own, see "
            "[your own data](datacenter/data.md#your-own-data).",
        ),
        Hint(allowed=", ".join(f'"{one}"' for one in SOURCES) + ', or "module:function"'),
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
        bool, Field(description="Concatenate documents into sequences; otherwise each document starts its own.")
    ] = True
    document_masks: Annotated[
        bool,
        Field(
            description="Attend within documents, with positions from the start of each; otherwise to all earlier "
            "tokens of the sequence. See [document masks](datacenter/data.md#document-masks)."
        ),
    ] = False

    settings: Annotated[dict[str, bool | int | float | str], Hint(default="none")] = Field(
        default_factory=dict, description="Passed to your own data's function."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find a source without its path, and settings that the source does not use."""
        if self.source in {"tokens", "text"} and self.path is None:
            yield "path", f'is missing; source = "{self.source}" needs it'
        yield from self.unused(_UNREAD.get(self.source, _NOT_OURS), f'source = "{self.source}"')


class BatchSection(Section):
    """Size of a step."""

    sequence: Annotated[int, Field(ge=1, le=1 << 24, description="Tokens of one sequence.")] = 128
    global_batch: Annotated[int, Field(ge=1, le=1 << 24, description="Sequences of one step, over all ranks.")] = 8
    micro_batch: Annotated[int, Field(ge=1, le=1 << 20, description="Sequences of one forward pass on one rank.")] = 1


class OptimiserSection(Section):
    """Optimiser of the weights."""

    name: Annotated[
        Literal["adamw", "muon", "sgd"],
        Field(
            description="AdamW (Loshchilov and Hutter 2019); `muon`: Muon for the matrices of the blocks and AdamW for "
            "the rest (Liu et al. 2025), with one learning rate; or SGD."
        ),
    ] = "adamw"
    lr: Annotated[float, Field(gt=0, description="Peak learning rate.")] = 3e-4
    betas: Annotated[
        tuple[float, float], Field(strict=False, description="Decay of AdamW's first and second moments.")
    ] = (0.9, 0.95)
    epsilon: Annotated[float, Field(gt=0, description="AdamW's epsilon.")] = 1e-8
    momentum: Annotated[float, Field(ge=0, lt=1, description="SGD's momentum.")] = 0.0
    muon_momentum: Annotated[float, Field(ge=0, lt=1, description="Muon's momentum (Nesterov's).")] = 0.95
    weight_decay: Annotated[float, Field(ge=0, description="Decay of matrices; vectors do not decay.")] = 0.1
    max_grad_norm: Annotated[
        float | None,
        Field(gt=0, description="Clip the gradient to this norm over all parameters (Pascanu et al. 2013)."),
    ] = 1.0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find moments outside [0, 1), and settings of other optimisers."""
        if not all(0 <= beta < 1 for beta in self.betas):
            yield "betas", "allowed are two numbers from 0 up to, but not including, 1"
        unused = {
            "adamw": ("momentum", "muon_momentum"),
            "muon": ("momentum",),
            "sgd": ("betas", "epsilon", "muon_momentum"),
        }
        yield from self.unused(unused[self.name], f'name = "{self.name}"')


class ScheduleSection(Section):
    """Learning rate schedule."""

    warmup_steps: Annotated[int, Field(ge=0, description="Steps over which it rises from 0.")] = 0
    decay: Annotated[
        Literal["none", "linear", "cosine"], Field(description="Shape of the decay after the warm-up.")
    ] = "cosine"
    decay_steps: Annotated[
        int | None,
        Field(ge=1, description="Decay only over this many last steps (warm-up, stable, decay)."),
        Hint(default="all after the warm-up"),
    ] = None
    floor: Annotated[float, Field(ge=0, le=1, description="Final learning rate as a share of the peak.")] = 0.1


class PrecisionSection(Section):
    """Number formats. Parameters, gradient sums and optimiser states remain float32."""

    compute: Annotated[
        Literal["float32", "bfloat16", "float16", "float8"],
        Field(
            description="Format of matrix products. `float16` scales the loss (Micikevicius et al. 2018, section 3.2); "
            "`float8` needs torchao and a GPU that has it."
        ),
    ] = "float32"
    float8_scaling: Annotated[
        Literal["tensor", "row"],
        Field(
            description="Numbers that share a scale in `float8`: those of a matrix, or those of each row and column, "
            "which follows outliers and is slower."
        ),
    ] = "tensor"
    float8_gather: Annotated[
        bool,
        Field(
            description="FSDP gathers the blocks' matrices in float8: half the bytes of bfloat16. With `float8` and "
            "`tensor`."
        ),
    ] = False
    reduce: Annotated[
        Literal["float32", "bfloat16"], Field(description="Format in which gradients are summed across ranks.")
    ] = "float32"
    initial_scale: Annotated[float, Field(gt=0, description="Initial loss scale (`float16`).")] = 65536.0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find a loss scale and settings of float8 that are not used, and a gather that one scale cannot serve."""
        if self.compute != "float8":
            yield from self.unused(("float8_scaling", "float8_gather"), f'compute = "{self.compute}"')
        elif self.float8_gather and self.float8_scaling == "row":
            yield "float8_gather", 'sends one scale for each matrix: set float8_scaling = "tensor", or leave it out'
        if self.compute != "float16":
            yield from self.unused(("initial_scale",), f'compute = "{self.compute}"')
