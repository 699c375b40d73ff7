"""A participant for statistics: it returns its table, and the SDK sends sums over it.

atoll client start examples/table_client.py:Hospital --arg file=patients.csv --join @token.txt --state ./hospital
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.client import Participant


class Hospital(Participant):
    """The rows of a CSV file with a header line."""

    def __init__(self, file: str) -> None:
        self.file = file

    def table(self) -> Any:
        """The rows as a numpy structured array, whose fields are the columns."""
        return np.genfromtxt(
            self.file, delimiter=",", names=True, dtype=None, encoding="utf-8", deletechars="", replace_space=" "
        )
