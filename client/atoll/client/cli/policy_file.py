"""A participant's policy as a TOML file.

::

    min_cohort = 3
    runs = ["digits-*"]
    max_rounds_per_day = 100
    max_bytes_per_day = 2_000_000_000
    max_model_bytes = 500_000_000       # default: 8 GiB
    min_free_disk_bytes = 1_000_000_000 # bytes of the disk that a download leaves free; default: 1 GiB
    errors = "type"                     # how much of an error the server gets; or "text", which may quote data
    metrics = ["loss", "accuracy*"]     # names of metrics that may be sent; default: all
    hook = "my_hours:decide"            # a function Task -> Decision on this machine's import path

    [settings.learning_rate]            # with any [settings.*], settings that are not listed are refused
    min = 0.0
    max = 1.0

    [settings.optimiser]
    choices = ["sgd", "adam"]

    [privacy]                           # terms that the operator must promise; runs without terms are declined
    max_epsilon = 8.0                   # of the whole run
    max_delta = 1e-5
    max_total_epsilon = 20.0            # of all runs together
    max_total_delta = 1e-4
    min_noise_multiplier = 0.5          # over the sensitivity
    mechanisms = ["gaussian", "blt"]    # default: any
    adjacencies = ["add_remove"]        # default: any
    samplings = ["none", "poisson"]     # whose amplification may be counted; default: any
    units = ["participant"]             # "row" too, for statistics that protect rows; default: this
    require = true                      # false: runs without terms are accepted too

    [local_privacy]                     # adds noise to each update before it is sent, also without [privacy]
    mechanism = "gaussian"              # or "sphere", which has no delta
    epsilon = 1.0                       # of one update
    delta = 1e-7
    clip_norm = 1.0
    max_epsilon = 8.0                   # of all updates together; rounds beyond it are declined
    max_delta = 1e-5
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.client.cli.locate import locate
from atoll.client.errors import ERROR_DETAILS, ErrorDetails, PolicyError, UsageError
from atoll.client.policy import Policy, SettingRule
from atoll.client.privacy_demand import PrivacyDemand
from atoll.wire.privacy_terms import PrivacyAdjacency, PrivacyMechanism, PrivacySampling, PrivacyUnit

if TYPE_CHECKING:
    from atoll.client._privacy.randomisers import LocalPrivacy

_COUNTS = ("min_cohort", "max_rounds_per_day", "max_bytes_per_day", "max_model_bytes", "min_free_disk_bytes")
_KEYS = (*_COUNTS, "runs", "errors", "metrics", "hook", "settings", "privacy", "local_privacy")
_RULE_KEYS = ("min", "max", "choices")
_DEMAND_NUMBERS = ("max_epsilon", "max_delta", "max_total_epsilon", "max_total_delta", "min_noise_multiplier")
_DEMAND_NAMES: dict[str, type[StrEnum]] = {
    "mechanisms": PrivacyMechanism,
    "adjacencies": PrivacyAdjacency,
    "samplings": PrivacySampling,
    "units": PrivacyUnit,
}
_DEMAND_KEYS = ("require", *_DEMAND_NUMBERS, *_DEMAND_NAMES)
_LOCAL_NUMBERS = ("epsilon", "delta", "clip_norm", "max_epsilon", "max_delta")
_MECHANISMS = ("gaussian", "sphere")


def read_policy(path: Path, defaults: Policy | None = None) -> Policy:
    """Read and check a policy file; ``defaults`` gives the values of missing keys.

    Raises:
        PolicyError: names file, key, value and what is allowed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"cannot read the policy {path}: {error}") from None
    except (ValueError, RecursionError) as error:  # a plain ValueError: a number with thousands of digits
        raise PolicyError(f"{path} is not TOML: {error}") from None
    return _Reader(path).policy(document, defaults or Policy())


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def policy(self, document: Mapping[str, Any], defaults: Policy) -> Policy:
        self._known(document, _KEYS, "")
        values: dict[str, Any] = {key: self._count(key, document[key]) for key in _COUNTS if key in document}
        for key in ("runs", "metrics"):
            if key in document:
                values[key] = self._texts(key, document[key])
        if "errors" in document:
            values["errors"] = self._errors(document["errors"])
        if "hook" in document:
            values["hook"] = self._hook(document["hook"])
        if "settings" in document:
            values["settings"] = self._settings(document["settings"])
        if "privacy" in document:
            values["privacy"] = self._demand(document["privacy"])
        if "local_privacy" in document:
            values["local_privacy"] = self._local(document["local_privacy"])
        return replace(defaults, **values)

    def _demand(self, table: object) -> PrivacyDemand:
        if not isinstance(table, dict):
            raise self._wrong("privacy", table, "a table")
        self._known(table, _DEMAND_KEYS, "privacy.")
        values: dict[str, Any] = {
            key: self._positive(f"privacy.{key}", table[key]) for key in _DEMAND_NUMBERS if key in table
        }
        require = table.get("require", True)
        if not isinstance(require, bool):
            raise self._wrong("privacy.require", require, "true or false")
        for key, kind in _DEMAND_NAMES.items():
            if key in table:
                values[key] = self._names(f"privacy.{key}", table[key], [item.value for item in kind])
        try:
            return PrivacyDemand(require=require, **values)
        except UsageError as error:
            raise PolicyError(f"{self._path}: privacy: {error}") from None

    def _local(self, table: object) -> LocalPrivacy:
        from atoll.client import local_privacy  # noqa: PLC0415  # loads cryptography when it is needed

        if not isinstance(table, dict):
            raise self._wrong("local_privacy", table, "a table")
        self._known(table, ("mechanism", *_LOCAL_NUMBERS), "local_privacy.")
        name = table.get("mechanism", "gaussian")
        if name not in _MECHANISMS:
            raise self._wrong("local_privacy.mechanism", name, " or ".join(_MECHANISMS))
        optional = ("delta", "max_delta") if name == "sphere" else ()
        missing = [key for key in _LOCAL_NUMBERS if key not in table and key not in optional]
        if missing:
            raise PolicyError(f"{self._path}: local_privacy lacks {', '.join(missing)}")
        if name == "sphere" and "delta" in table:
            raise self._wrong("local_privacy.delta", table["delta"], 'left out: "sphere" has none')
        values = {key: self._positive(f"local_privacy.{key}", table.get(key, 0.0)) for key in _LOCAL_NUMBERS}
        try:
            mechanism = (
                local_privacy.Sphere(values["epsilon"], values["clip_norm"])
                if name == "sphere"
                else local_privacy.Gaussian(values["epsilon"], values["delta"], values["clip_norm"])
            )
            return local_privacy.LocalPrivacy(
                mechanism, local_privacy.Limit(values["max_epsilon"], values["max_delta"])
            )
        except UsageError as error:
            raise PolicyError(f"{self._path}: local_privacy: {error}") from None

    def _errors(self, value: object) -> ErrorDetails:
        for known in ERROR_DETAILS:
            if value == known:
                return known
        raise self._wrong("errors", value, " or ".join(f'"{known}"' for known in ERROR_DETAILS))

    def _positive(self, key: str, value: object) -> float:
        number = self._bound(key, value)
        if number is None or not number >= 0:
            raise self._wrong(key, value, "a number, at least 0")
        return number

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

    def _names(self, key: str, value: object, known: list[str]) -> tuple[str, ...]:
        names = self._texts(key, value)
        if not set(names) <= set(known):
            raise self._wrong(key, value, f"a list out of {', '.join(known)}")
        return names

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
