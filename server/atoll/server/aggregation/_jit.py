"""Compiles loops with numba, which is untyped; a compiled function keeps the type of its Python function.

Numba is imported when the first loop is compiled: the import takes a third of a second, and a starting server does it
only after it has begun to serve.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger(__name__)
_helpers: list[Callable[..., Any]] = []
"""Functions that loops may call and that are not registered with numba yet."""
_importing = threading.RLock()


class _Dispatcher(Protocol):
    """The part of ``numba.core.dispatcher.Dispatcher`` used here."""

    def compile(self, signature: tuple[object, ...]) -> object: ...
    def disable_compile(self) -> None: ...


def callable_from_loops(function: Callable[P, R]) -> Callable[P, R]:
    """Let compiled loops call this scalar helper; it stays an ordinary Python function too."""
    _helpers.append(function)
    return function


def compiled(function: Callable[P, R], signature: Sequence[object]) -> Callable[P, R]:
    """``function`` compiled for exactly this signature, run without the GIL; other argument types raise TypeError.

    Arithmetic is IEEE 754, operation by operation: nothing is reordered or fused, so every machine gives the same bits.
    A division by zero gives infinity or NaN instead of raising, so that loops vectorise.

    The machine code is kept in the cache described in ``kernel``. Where no cache directory can be written (read-only
    package and home, full disk) it is compiled in memory and a warning says so.

    Args:
        function: a function whose closure, if any, holds only module-level functions: they are part of the cache key.
        signature: from ``array_type``, ``tuple_type`` and ``scalar_type``.
    """
    try:
        return _compile(function, signature, cache=True)
    except (RuntimeError, OSError) as error:
        _log.warning(
            "numba cannot keep its cache (%s): compiling at every start; set NUMBA_CACHE_DIR to a writable directory",
            error,
        )
        return _compile(function, signature, cache=False)


def array_type(dtype: type[np.generic], *, writable: bool = False) -> object:
    """A contiguous vector; if not ``writable``, it may be read-only and unaligned, as in a message or a memory map."""
    return _numba().types.Array(scalar_type(dtype), 1, "C", readonly=not writable, aligned=writable)


def tuple_type(dtype: type[np.generic], length: int) -> object:
    """A tuple of scalars of one type."""
    return _numba().types.UniTuple(scalar_type(dtype), length)


def scalar_type(dtype: type[np.generic]) -> Any:
    """A scalar argument."""
    return _numba().from_dtype(np.dtype(dtype))


def _numba() -> Any:
    """Numba with all helpers registered. Its annotations are partial and differ between versions."""
    with _importing:
        import numba  # noqa: PLC0415 - see the module
        from numba import extending  # noqa: PLC0415

        while _helpers:
            extending.register_jitable(_helpers.pop())
        return numba


def _compile(function: Callable[P, R], signature: Sequence[object], *, cache: bool) -> Callable[P, R]:
    made = _numba().njit(nogil=True, cache=cache, error_model="numpy")(function)
    dispatcher = cast("_Dispatcher", made)
    dispatcher.compile(tuple(signature))
    dispatcher.disable_compile()
    return cast("Callable[P, R]", made)
