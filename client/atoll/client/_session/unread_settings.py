"""A warning for a mistyped key of ``[training]``: the participant's code asked for a similar one, which is not there.

Settings are free, so no schema can refuse ``learning_rat``. What the code asks for in its first task of a run shows it.
A key that is similar to none of these names may be meant for a later round or for other participants: it is no warning.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from atoll.client.settings import Settings

if TYPE_CHECKING:
    from atoll.wire.messages import SettingValue

log = logging.getLogger("atoll.client")
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
        """The keys that were not asked for, with the similar name that was and is missing."""
        missing = {name.lower(): name for name in sorted(self.asked - self._values.keys())}
        close = {key: get_close_matches(key.lower(), missing, n=1) for key in self._values.keys() - self.asked}
        return {key: missing[found[0]] for key, found in sorted(close.items()) if found}


def watched(settings: Settings, run: str) -> WatchedSettings | None:
    """The same settings, watched; None if there are none, or if this process has checked those of the run."""
    return WatchedSettings(settings) if settings and run not in _checked else None


def warn_of_mistyped(settings: WatchedSettings, run: str) -> None:
    """Log each key that was not asked for while a similar one was; the run is checked."""
    _checked[run] = None
    while len(_checked) > _MAX_RUNS:
        _checked.popitem(last=False)
    for key, name in settings.mistyped().items():
        log.warning("setting %r of [training] is not read, and %r is missing: is it mistyped in the job?", key, name)
