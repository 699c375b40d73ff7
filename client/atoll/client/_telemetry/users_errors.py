"""Log text for an exception of the participant's own code: where it was raised, and the shapes of the model."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.wire.layout import Layout

_SDK = str(Path(__file__).parents[1])
_SHAPE_WORDS = re.compile(r"\b(shapes?|sizes?|dimensions?|features)\b", re.IGNORECASE)
"""Words in the errors of numpy, torch, JAX and scikit-learn about mismatched arrays."""
_NAMED_TENSORS = 6


def users_frame(error: BaseException) -> traceback.FrameSummary:
    """Where an exception of a user's code was raised: its innermost line outside the SDK and installed packages.

    If there is no such line, the innermost one of all.

    Raises:
        IndexError: for an exception that was never raised.
    """
    frames = traceback.extract_tb(error.__traceback__)
    foreign = (_SDK, "<frozen", *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")))
    own = [frame for frame in frames if not frame.filename.startswith(foreign)]
    return (own or frames)[-1]


def users_traceback(error: BaseException) -> TracebackType | None:
    """The traceback without Atoll's frames before the first one of the user's code; None if there is no other."""
    frames = error.__traceback__
    while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith("atoll."):
        frames = frames.tb_next
    return frames


def note_shapes(error: BaseException, layout: Layout) -> None:
    """Add the shapes of the model to an exception about shapes (PEP 678).

    A first model that was made before the data changed is the usual cause, and no library's message names it.
    """
    if not _SHAPE_WORDS.search(str(error)):
        return
    named = [f"{spec.name} {list(spec.shape)}" for spec in layout.tensors[:_NAMED_TENSORS]]
    if len(layout.tensors) > _NAMED_TENSORS:
        named.append(f"{len(layout.tensors) - _NAMED_TENSORS} more tensors")
    error.add_note(
        f"the model has {', '.join(named)}; if the data here has another shape, the job needs another first model "
        "([model] initial)"
    )
