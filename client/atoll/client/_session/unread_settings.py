"""Warn about a mistyped key of ``[training]``: the participant's code asked for a similar key that is missing.

Settings are free-form, so no schema can refuse ``learning_rat``. The keys that the code reads in its first task of a
run reveal the mistake. If the job also has the key that was read, only an almost identical key counts as a mistake:
``decay`` is not taken for ``decay_from``. A key that is similar to none may be for a later round or for other
participants, so it causes no warning.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Set
from difflib import get_close_matches
from typing import TYPE_CHECKING

from atoll.client.settings import Settings

if TYPE_CHECKING:
    from atoll.wire.messages import SettingValue

log = logging.getLogger("atoll.client")
_SIMILAR, _NEARLY_SAME = 0.6, 0.85
"""Ratios of ``difflib``: for names that the job lacks, and for names that it has too."""
_NUMBERS = re.compile(r"\d+")
_MAX_RUNS = 1000
"""Number of runs remembered as checked, newest first."""
_checked: OrderedDict[str, None] = OrderedDict()
"""Shared by the process, so that thousands of virtual participants warn once."""


class WatchedSettings(Settings):
    """Settings that record the names that were read."""

    def __init__(self, values: Mapping[str, SettingValue]) -> None:
        super().__init__(values)
        self.asked = set[str]()

    def __getitem__(self, name: str) -> SettingValue:
        self.asked.add(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self.asked.update(self._values)
        return super().__iter__()

    def _find(self, name: str, default: SettingValue | None) -> SettingValue:
        self.asked.add(name)
        return super()._find(name, default)

    def mistyped(self) -> dict[str, str]:
        """The keys that were not read, each with the similar name that was."""
        found = {}
        for key in sorted(self._values.keys() - self.asked):
            name = _similar(key, self.asked - self._values.keys(), _SIMILAR)
            name = name or _similar(key, self.asked & self._values.keys(), _NEARLY_SAME)
            if name is not None:
                found[key] = name
        return found


def _similar(key: str, names: Set[str], cutoff: float) -> str | None:
    """The most similar name; None below the cutoff, or if only digits differ (``lr_1``, ``lr_2``)."""
    known = {name.lower(): name for name in sorted(names) if _NUMBERS.sub("", name) != _NUMBERS.sub("", key)}
    close = get_close_matches(key.lower(), known, n=1, cutoff=cutoff)
    return known[close[0]] if close else None


def watched(settings: Settings, run: str) -> WatchedSettings | None:
    """The same settings, watched; None if there are none, or if this process has checked this run's."""
    return WatchedSettings(settings) if settings and run not in _checked else None


def warn_of_mistyped(settings: WatchedSettings, run: str) -> None:
    """Log each key that was not read although a similar one was, and mark the run as checked."""
    _checked[run] = None
    while len(_checked) > _MAX_RUNS:
        _checked.popitem(last=False)
    for key, name in settings.mistyped().items():
        log.warning("setting %r of [training] is not read, but %r is: is it mistyped in the job?", key, name)
