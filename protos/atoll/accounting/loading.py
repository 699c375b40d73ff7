"""Opacus' accountants, loaded when they are first needed: it brings PyTorch along, which takes seconds."""

from __future__ import annotations

import warnings
from functools import lru_cache
from types import ModuleType
from typing import cast


class OpacusMissingError(ImportError):
    """Opacus is not installed, or cannot be loaded."""


@lru_cache(maxsize=1)
def opacus_accountants() -> ModuleType:
    """``opacus.accountants``.

    Raises:
        OpacusMissingError: if it cannot be imported.
    """
    try:
        import opacus.accountants  # noqa: PLC0415
        import opacus.accountants.analysis.rdp  # noqa: PLC0415
    except ImportError as error:
        raise OpacusMissingError(f"Opacus cannot be imported: {error}", name="opacus") from error
    warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)  # of the bound by which it sizes its grid
    return cast("ModuleType", opacus.accountants)
