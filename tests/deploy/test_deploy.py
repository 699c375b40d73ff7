"""Files for operators, in deploy/ and at the root: they name things that exist, and pass the checks of their tools."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.server.config.config_file import load_config
from atoll.server.telemetry.gauges import Gauges, families
from atoll.server.telemetry.node import NodeFigures
from atoll.server.telemetry.rounds import RoundFigures
from tests.patience import WAIT_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "systemd" / "atoll-server.service").read_text(encoding="utf-8")
ALERTS = (DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def run(*command: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def metric_names() -> set[str]:
    """Every name of a sample that the server can show."""
    node, rounds = NodeFigures(), RoundFigures()
    node.meter.refused("x.y")
    found = [*families(Gauges()), *node.registry.collect(), *rounds.registry.collect()]
    names = {family.name + end for family in found for end in ("", "_total", "_bucket", "_count", "_sum")}
    return names | {sample.name for family in found for sample in family.samples}


def test_alerts_and_operations_name_only_metrics_that_there_are() -> None:
    for text in (ALERTS, OPERATIONS):
        named = set(re.findall(r"\batoll_[a-z_]+", text))
        assert named
        assert named <= metric_names()


def test_every_alert_names_an_entry_of_the_runbook() -> None:
    entries = re.findall(r'runbook: "docs/operations.md: ([^"]+)"', ALERTS)
    assert len(entries) == ALERTS.count("- alert:")
    headings = {line.lstrip("# ").lower() for line in OPERATIONS.splitlines() if line.startswith("##")}
    assert {entry.lower() for entry in entries} <= headings


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_alerts_pass_promtool() -> None:
    run("promtool", "check", "rules", "alerts.yml", cwd=DEPLOY / "prometheus")
    run("promtool", "test", "rules", "alerts.test.yml", cwd=DEPLOY / "prometheus")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_passes_systemd(tmp_path: Path) -> None:
    atoll = Path(sys.executable).with_name("atoll")
    unit = UNIT.replace("/opt/atoll/bin/atoll", str(atoll)).replace("=atoll\nGroup=atoll", "=root\nGroup=root")
    (tmp_path / "atoll-server.service").write_text(unit, encoding="utf-8")
    run("systemd-analyze", "verify", str(tmp_path / "atoll-server.service"))


def test_the_unit_lets_the_kernels_compile_and_be_kept() -> None:
    assert "\nMemoryDenyWriteExecute=" not in UNIT
    assert "NUMBA_CACHE_DIR=/var/cache/atoll" in UNIT
    assert "Type=notify" in UNIT


def test_the_example_configuration_is_one() -> None:
    config = load_config({}, DEPLOY / "server.toml")
    assert (config.workers, str(config.data)) == (2, "/var/lib/atoll")


def test_the_image_holds_what_it_is_built_from_and_runs_as_nobody_special() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    assert text.rindex("USER atoll") > text.rindex("RUN ")
    assert "HEALTHCHECK" in text
    assert f"ATOLL_SERVER=127.0.0.1:{load_config({}).port}" in text
