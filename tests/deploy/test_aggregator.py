"""The files that start an aggregator: the unit of systemd, Compose and Kubernetes fit each other and the command."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll.server.aggregator.config import AggregatorConfig
from atoll.server.cli.aggregator import start
from atoll.server.config.config_file import load_settings
from tests.deploy.test_deploy import DEPLOY, ROOT, run
from tests.docs.commands import Typed, check

UNIT = (DEPLOY / "systemd" / "atoll-aggregator.service").read_text(encoding="utf-8")
KUBERNETES = DEPLOY / "kubernetes-aggregator"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.aggregator.yaml").read_text(encoding="utf-8"))
(SET,) = yaml.safe_load_all((KUBERNETES / "aggregator.yaml").read_text(encoding="utf-8"))
POD: dict[str, Any] = SET["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
OTHERS = {
    (one["kind"], one["metadata"]["name"]): one
    for one in yaml.safe_load_all((KUBERNETES / "network.yaml").read_text(encoding="utf-8"))
}
MAIN = AggregatorConfig().port
PORTS = {"main": MAIN, "enrolment": MAIN + 1, "metrics": MAIN + 3}


def config_of(path: Path) -> AggregatorConfig:
    return load_settings(AggregatorConfig, {}, path)


def is_a_command(words: list[str]) -> None:
    check(Typed(" ".join(words), tuple(words[1:]), whole=True))


def variables() -> set[str]:
    """The environment variables that the command reads."""
    return {str(option.envvar) for option in start.params if option.envvar}


class TestSystemd:
    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
    def test_the_unit_passes_systemd(self, tmp_path: Path) -> None:
        atoll = Path(sys.executable).with_name("atoll")
        unit = UNIT.replace("/opt/atoll/bin/atoll", str(atoll)).replace("=atoll\nGroup=atoll", "=root\nGroup=root")
        path = tmp_path / "atoll-aggregator.service"
        path.write_text(unit, encoding="utf-8")
        run("systemd-analyze", "verify", str(path))

    def test_it_writes_where_its_configuration_says_and_has_the_time_to_drain(self) -> None:
        config = config_of(DEPLOY / "aggregator.toml")
        (folder,) = re.findall(r"^StateDirectory=(.*)$", UNIT, re.MULTILINE)
        assert str(config.data) == f"/var/lib/{folder}"
        (patience_s,) = re.findall(r"^TimeoutStopSec=(.*)$", UNIT, re.MULTILINE)
        assert float(patience_s) > 2 * config.drain_s
        assert "\nMemoryDenyWriteExecute=" not in UNIT, "the fold kernels are compiled where they run"

    def test_it_is_as_confined_as_the_server(self) -> None:
        server = (DEPLOY / "systemd" / "atoll-server.service").read_text(encoding="utf-8")
        confined = [text[text.index("# Hardening") :] for text in (server, UNIT)]
        assert confined[0] == confined[1]

    def test_the_token_comes_by_a_variable_that_the_command_reads(self) -> None:
        named = set(re.findall(r"ATOLL_[A-Z_]+", UNIT))
        assert named
        assert named <= variables()


class TestCompose:
    def test_the_service_runs_a_command_on_a_configuration(self, tmp_path: Path) -> None:
        service = COMPOSE["services"]["aggregator"]
        is_a_command([*service["entrypoint"], *service["command"]])
        (mounted,) = service["configs"]
        path = tmp_path / "aggregator.toml"
        path.write_text(COMPOSE["configs"][mounted["source"]]["content"], encoding="utf-8")
        assert config_of(path).drain_s * 2 < float(service["stop_grace_period"].removesuffix("s"))
        assert service["command"][-1] == mounted["target"]
        assert set(service["environment"]) <= variables()

    def test_its_ports_probe_and_volume(self) -> None:
        service = COMPOSE["services"]["aggregator"]
        assert service["ports"] == [f"{PORTS[name]}:{PORTS[name]}" for name in ("main", "enrolment")]
        assert f"http://127.0.0.1:{PORTS['metrics']}/readyz" in service["healthcheck"]["test"][-1]
        (volume,) = service["volumes"]
        name, folder = volume.split(":")
        assert name in COMPOSE["volumes"]
        assert Path(service["environment"]["ATOLL_AGGREGATOR_DATA"]).is_relative_to(folder)


class TestKubernetes:
    def test_the_container_runs_a_command_on_the_configuration(self) -> None:
        is_a_command([*CONTAINER["command"], *CONTAINER["args"]])
        customised = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
        (made,) = customised["configMapGenerator"]
        (source,) = (one for one in POD["spec"]["volumes"] if "configMap" in one)
        assert made == {"name": source["configMap"]["name"], "files": ["aggregator.toml"]}
        assert customised["images"][0]["name"] == CONTAINER["image"]
        assert all((KUBERNETES / name).is_file() for name in customised["resources"])
        assert {one["name"] for one in CONTAINER["env"]} <= variables()

    def test_its_ports_are_the_aggregators(self) -> None:
        assert {one["name"]: one["containerPort"] for one in CONTAINER["ports"]} == PORTS
        for service, names in (("atoll-aggregator", ["main", "enrolment"]), ("atoll-aggregator-metrics", ["metrics"])):
            spec = OTHERS["Service", service]["spec"]
            assert {one["name"]: one["port"] for one in spec["ports"]} == {name: PORTS[name] for name in names}
            assert {one["targetPort"] for one in spec["ports"]} <= set(PORTS)

    def test_services_and_policy_choose_the_pod(self) -> None:
        labels = POD["metadata"]["labels"]
        assert SET["spec"]["selector"]["matchLabels"] == labels
        assert ("Service", SET["spec"]["serviceName"]) in OTHERS
        for (kind, _), one in OTHERS.items():
            chosen = one["spec"]["selector"] if kind == "Service" else one["spec"]["podSelector"]["matchLabels"]
            assert chosen == labels

    def test_probes_ask_pages_that_there_are_on_an_address_that_the_kubelet_reaches(self) -> None:
        config = config_of(KUBERNETES / "aggregator.toml")
        assert config.metrics_host == "0.0.0.0"  # noqa: S104  # the policy says who may connect
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = CONTAINER[name]["httpGet"]
            assert (asked["path"], asked["port"]) in {("/healthz", "metrics"), ("/readyz", "metrics")}
        assert POD["spec"]["terminationGracePeriodSeconds"] > 2 * config.drain_s

    def test_what_it_writes_lies_in_volumes(self) -> None:
        dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
        data = {one["name"]: one.get("value", "") for one in CONTAINER["env"]}["ATOLL_AGGREGATOR_DATA"]
        mounts = [one["mountPath"] for one in CONTAINER["volumeMounts"] if not one.get("readOnly")]
        for path in (data, "/var/cache/atoll", "/tmp"):  # noqa: S108  # a path in the container
            assert any(Path(path).is_relative_to(mount) for mount in mounts)
        assert POD["spec"]["securityContext"]["runAsUser"] == int(re.findall(r"--uid (\d+)", dockerfile)[0])
