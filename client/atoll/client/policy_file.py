"""A participant's policy as a TOML file.

::

    min_cohort = 3
    runs = ["digits-*"]
    max_rounds_per_day = 100
    max_bytes_per_day = 2_000_000_000
    max_model_bytes = 500_000_000
    hook = "my_hours:decide"            # a function Task -> Decision on this machine's import path

    [settings.learning_rate]            # with any [settings.*], settings that are not listed are refused
    min = 0.0
    max = 1.0

    [settings.optimiser]
    choices = ["sgd", "adam"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atoll.client.errors import PolicyError, UsageError
from atoll.client.locate import locate
from atoll.client.policy import Policy, SettingRule

_COUNTS = ("min_cohort", "max_rounds_per_day", "max_bytes_per_day", "max_model_bytes")
_KEYS = (*_COUNTS, "runs", "hook", "settings")
_RULE_KEYS = ("min", "max", "choices")


def read_policy(path: Path) -> Policy:
    """Read and check a policy file.

    Raises:
        PolicyError: naming file, key, value and what is allowed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"cannot read the policy {path}: {error}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PolicyError(f"{path} is not TOML: {error}") from None
    return _Reader(path).policy(document)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def policy(self, document: Mapping[str, Any]) -> Policy:
        self._known(document, _KEYS, "")
        values: dict[str, Any] = {key: self._count(key, document[key]) for key in _COUNTS if key in document}
        if "runs" in document:
            values["runs"] = self._texts("runs", document["runs"])
        if "hook" in document:
            values["hook"] = self._hook(document["hook"])
        if "settings" in document:
            values["settings"] = self._settings(document["settings"])
        return Policy(**values)

    def _settings(self, table: object) -> dict[str, SettingRule]:
        if not isinstance(table, dict):
            raise self._wrong("settings", table, "tables [settings.NAME]")
        return {name: self._rule(f"settings.{name}", rule) for name, rule in table.items()}

    def _rule(self, key: str, rule: object) -> SettingRule:
        if not isinstance(rule, dict):
            raise self._wrong(key, rule, "a table with min, max or choices")
        self._known(rule, _RULE_KEYS, f"{key}.")
        choices = rule.get("choices", [])
        if not isinstance(choices, list) or any(not isinstance(item, bool | int | float | str) for item in choices):
            raise self._wrong(f"{key}.choices", choices, "a list of numbers, texts or true/false")
        low, high = (self._bound(f"{key}.{name}", rule.get(name)) for name in ("min", "max"))
        if low is not None and high is not None and low > high:
            raise self._wrong(f"{key}.min", low, f"at most {key}.max = {high:g}")
        return SettingRule(low, high, tuple(choices))

    def _bound(self, key: str, value: object) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def _count(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, value, "a whole number, at least 0")
        return value

    def _texts(self, key: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise self._wrong(key, value, 'a list of texts like ["digits-*"]')
        return tuple(value)

    def _hook(self, value: object) -> Callable[..., Any]:
        if not isinstance(value, str):
            raise self._wrong("hook", value, 'a text like "module:function"')
        try:
            hook = locate(value)
        except UsageError as error:
            raise PolicyError(f"{self._path}: hook: {error}") from None
        if not callable(hook):
            raise self._wrong("hook", value, "the name of a function")
        return hook

    def _known(self, table: Mapping[str, Any], allowed: tuple[str, ...], prefix: str) -> None:
        for key in table:
            if key not in allowed:
                raise PolicyError(f"{self._path}: unknown key {prefix}{key}; allowed are {', '.join(allowed)}")

    def _wrong(self, key: str, value: object, allowed: str) -> PolicyError:
        return PolicyError(f"{self._path}: {key} = {value!r}; allowed is {allowed}")
