"""A warning for a mistyped key of ``[training]``: the participant's code asked for a similar one, which is not there.

Settings are free, so no schema can refuse ``learning_rat``. What the code asks for in its first task of a run shows it.
If the job has that name besides, only nearly the same is taken for a mistake: ``decay`` is no ``decay_from``. A key
that is similar to none may be meant for a later round or for other participants: it is no warning.
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
"""Ratios of ``difflib``: for names that are missing, and for those that the job has besides."""
_NUMBERS = re.compile(r"\d+")
_MAX_RUNS = 1000
"""Runs that are remembered as checked, the newest."""
_checked: OrderedDict[str, None] = OrderedDict()
"""The process's, not the participant's: thousands of virtual participants warn once."""


class WatchedSettings(Settings):
    """Settings that know which names they were asked for."""

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
        """The keys that were not asked for, with the similar name that was."""
        found = {}
        for key in sorted(self._values.keys() - self.asked):
            name = _similar(key, self.asked - self._values.keys(), _SIMILAR)
            name = name or _similar(key, self.asked & self._values.keys(), _NEARLY_SAME)
            if name is not None:
                found[key] = name
        return found


def _similar(key: str, names: Set[str], cutoff: float) -> str | None:
    """The most similar name; None below the cutoff, or if it differs in digits alone (``lr_1``, ``lr_2``)."""
    known = {name.lower(): name for name in sorted(names) if _NUMBERS.sub("", name) != _NUMBERS.sub("", key)}
    close = get_close_matches(key.lower(), known, n=1, cutoff=cutoff)
    return known[close[0]] if close else None


def watched(settings: Settings, run: str) -> WatchedSettings | None:
    """The same settings, watched; None if there are none, or if this process has checked those of the run."""
    return WatchedSettings(settings) if settings and run not in _checked else None


def warn_of_mistyped(settings: WatchedSettings, run: str) -> None:
    """Log each key that was not asked for while a similar one was; the run is checked."""
    _checked[run] = None
    while len(_checked) > _MAX_RUNS:
        _checked.popitem(last=False)
    for key, name in settings.mistyped().items():
        log.warning("setting %r of [training] is not read, and %r is asked for: is it mistyped in the job?", key, name)
