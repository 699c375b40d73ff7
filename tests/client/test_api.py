"""The public surface, and what importing it costs."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys

import pytest

import atoll.client

PUBLIC = [
    "Access",
    "BudgetSpentError",
    "ClientError",
    "Continuous",
    "Decision",
    "DiskReserveError",
    "Evaluation",
    "Event",
    "Limits",
    "Model",
    "NotPermittedError",
    "Observer",
    "Participant",
    "Policy",
    "PolicyError",
    "PrivacyDemand",
    "PublicError",
    "RefusedError",
    "RoundGoneError",
    "RoundKey",
    "ScoreHistogram",
    "SettingError",
    "SettingRule",
    "Settings",
    "StateInUseError",
    "Task",
    "TaskKind",
    "TrainerError",
    "UnreachableError",
    "Update",
    "UpdateError",
    "UsageError",
    "run",
    "serve",
]
PUBLIC_MODULES = {
    "cli",
    "continuous",
    "control",
    "demo",
    "errors",
    "events",
    "in_process",
    "limits",
    "local_privacy",
    "model",
    "opacus",
    "participant",
    "participate",
    "policy",
    "privacy_demand",
    "scores",
    "settings",
    "silo",
    "task",
    "testing",
    "torch",
    "torch_batched",
    "torch_personal",
    "update",
}
"""Modules and folders that users may import; all others begin with an underscore."""
MEASURE = """
import sys
lines = 0
def trace(frame, event, argument):
    global lines
    lines += event == "line"
    return trace
sys.settrace(trace)
import {module}
sys.settrace(None)
with open("/proc/self/status") as status:
    kilobytes = int(next(line for line in status if line.startswith("VmHWM")).split()[1])
heavy = {{"torch", "atoll.server", "atoll.datacenter", "pydantic", "sqlalchemy"}} & set(sys.modules)
print(lines, kilobytes, ",".join(heavy))
"""


def measured(module: str) -> tuple[int, int, str]:
    """Lines run, peak kilobytes, and heavy modules loaded by importing this in a fresh process."""
    program = MEASURE.format(module=module)
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    lines, kilobytes, *heavy = out.split()
    return int(lines), int(kilobytes), ",".join(heavy)


def test_the_public_names_are_these() -> None:
    assert atoll.client.__all__ == PUBLIC
    assert all(getattr(atoll.client, name).__doc__ for name in PUBLIC if name != "Observer")


def test_the_public_modules_are_these() -> None:
    found = {module.name for module in pkgutil.iter_modules(atoll.client.__path__)}
    assert {name for name in found if not name.startswith("_")} == PUBLIC_MODULES


def test_what_silos_import_is_listed_in_the_docstring() -> None:
    from atoll.client import silo  # noqa: PLC0415  # loads gRPC

    assert set(re.findall(r"``(\w+)``", (silo.__doc__ or "").partition("====")[2])) == set(silo.__all__)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_importing_is_cheap() -> None:
    """At most 60 MB and twice the lines of Python of numpy, which it needs; processor time depends on the processor."""
    lines, kilobytes, heavy = measured("atoll.client")
    assert kilobytes <= 60_000
    assert heavy == ""
    assert lines <= 2 * measured("numpy")[0]


def test_every_error_has_the_base_and_an_exit_code() -> None:
    errors = [getattr(atoll.client, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, atoll.client.ClientError) for error in errors)
    assert {error.__name__: error.exit_code for error in errors} == {
        "BudgetSpentError": 1,
        "DiskReserveError": 1,
        "ClientError": 1,
        "NotPermittedError": 4,
        "PolicyError": 2,
        "RefusedError": 1,
        "RoundGoneError": 1,
        "SettingError": 2,
        "StateInUseError": 2,
        "TrainerError": 1,
        "PublicError": 1,
        "UnreachableError": 3,
        "UpdateError": 1,
        "UsageError": 2,
    }


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    from atoll.client import errors  # noqa: PLC0415

    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.ClientError):
            line = next(line for line in drawn.splitlines() if name in line.split())
            assert str(value.exit_code) in line.split(), name
