"""Training settings of a task: typed values, read with a type and a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from atoll.client.errors import SettingError

if TYPE_CHECKING:
    from atoll.wire.messages import SettingValue


class Settings(Mapping[str, "SettingValue"]):
    """The settings of a task.

    ``settings["epochs"]`` returns the value itself; ``number``, ``integer``, ``flag`` and ``text`` check its type.
    Without a default the setting is required.
    """

    def __init__(self, values: Mapping[str, SettingValue] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> SettingValue:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Settings({self._values})"

    def number(self, name: str, default: float | None = None) -> float:
        """A number; integers count as numbers.

        Raises:
            SettingError: if it is missing without a default, or of another type.
        """
        value = self._find(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong_type(name, value, "a number")
        return float(value)

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer; 3.0 counts as 3.

        Raises:
            SettingError: if it is missing without a default, or of another type.
        """
        value = self._find(name, default)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(name, value, "a whole number")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """A boolean.

        Raises:
            SettingError: if it is missing without a default, or of another type.
        """
        value = self._find(name, default)
        if not isinstance(value, bool):
            raise _wrong_type(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string.

        Raises:
            SettingError: if it is missing without a default, or of another type.
        """
        value = self._find(name, default)
        if not isinstance(value, str):
            raise _wrong_type(name, value, "a text")
        return value

    def _find(self, name: str, default: SettingValue | None) -> SettingValue:
        value = self._values.get(name, default)
        if value is None:
            known = ", ".join(sorted(self._values)) or "none"
            raise SettingError(f"the task has no setting {name!r} (it has: {known}); add it to [training] of the job")
        return value


def _wrong_type(name: str, value: SettingValue, wanted: str) -> SettingError:
    return SettingError(
        f"setting {name!r} is {value!r} ({type(value).__name__}); {wanted} is needed: correct it in [training] "
        "of the job"
    )
