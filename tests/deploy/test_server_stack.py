"""deploy/kubernetes, deploy/compose.server.yaml and deploy/grafana: their parts fit each other and the server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll.server.backup import make_standby
from atoll.server.buckets import parse_place
from atoll.server.config.config import ServerConfig
from atoll.server.config.config_file import load_config
from atoll.server.identity import Authority
from atoll.server.stores import Store
from atoll.server.stores.blob_place import BlobSettings
from tests.deploy.test_deploy import DEPLOY, ROOT, metric_names
from tests.docs.commands import Typed, check
from tests.patience import WAIT_S

KUBERNETES = DEPLOY / "kubernetes"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.server.yaml").read_text(encoding="utf-8"))
STANDBY: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.standby.yaml").read_text(encoding="utf-8"))
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "atoll.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")))


(STATEFUL_SET,) = manifests("server.yaml")
(SERVERS,) = manifests("../kubernetes-fleet/servers.yaml")
(AUTOSCALER,) = manifests("../kubernetes-autoscaling/autoscaler.yaml")
(ADAPTER,) = manifests("../kubernetes-autoscaling/prometheus-adapter.yaml")
POD: dict[str, Any] = STATEFUL_SET["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
OTHERS = {(one["kind"], one["metadata"]["name"]): one for one in manifests("network.yaml")}


def config() -> ServerConfig:
    return load_config({}, KUBERNETES / "server.toml")


def is_a_command(arguments: list[str]) -> None:
    check(Typed(" ".join(arguments), ("server", "start", "--json-log", *arguments), whole=True))


class TestKubernetes:
    def test_the_container_runs_a_command_on_the_configuration(self) -> None:
        is_a_command(CONTAINER["args"])
        mounts = {one["mountPath"]: one["name"] for one in CONTAINER["volumeMounts"]}
        (source,) = (one for one in POD["spec"]["volumes"] if one["name"] == mounts["/etc/atoll"])
        customised = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
        (made,) = customised["configMapGenerator"]
        assert made == {"name": source["configMap"]["name"], "files": ["server.toml"]}
        assert CONTAINER["args"] == ["--config", "/etc/atoll/server.toml"]
        assert customised["images"][0]["name"] == CONTAINER["image"]
        assert all((KUBERNETES / name).is_file() for name in customised["resources"])

    def test_its_ports_are_the_servers(self) -> None:
        ports = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}
        main = config().port
        assert ports == {"main": main, "enrolment": main + 1, "transfers": main + 2, "metrics": main + 3}
        public = ["main", "enrolment", "transfers"]
        (open_to_all, _) = OTHERS["NetworkPolicy", "atoll"]["spec"]["ingress"]
        assert open_to_all == {"ports": [{"port": name} for name in public]}
        for service, names in (("atoll", public), ("atoll-metrics", ["metrics"])):
            spec = OTHERS["Service", service]["spec"]
            assert {one["name"]: one["port"] for one in spec["ports"]} == {name: ports[name] for name in names}
            assert {one["targetPort"] for one in spec["ports"]} <= set(ports)

    def test_services_and_policy_choose_the_pod(self) -> None:
        labels = POD["metadata"]["labels"]
        assert STATEFUL_SET["spec"]["selector"]["matchLabels"] == labels
        assert STATEFUL_SET["spec"]["serviceName"] == "atoll-metrics"
        for (kind, _), one in OTHERS.items():
            chosen = one["spec"]["selector"] if kind == "Service" else one["spec"]["podSelector"]["matchLabels"]
            assert chosen == labels

    def test_probes_ask_pages_that_there_are_on_an_address_that_the_kubelet_reaches(self) -> None:
        assert config().metrics_host == "0.0.0.0"  # noqa: S104  # the policy says who may connect
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = CONTAINER[name]["httpGet"]
            assert (asked["path"], asked["port"]) in {("/healthz", "metrics"), ("/readyz", "metrics")}

    def test_what_it_writes_lies_in_volumes(self) -> None:
        dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
        data = {one["name"]: one["value"] for one in CONTAINER["env"] if "value" in one}["ATOLL_DATA"]
        mounts = [one["mountPath"] for one in CONTAINER["volumeMounts"] if not one.get("readOnly")]
        for path in (data, "/var/cache/atoll", "/tmp"):  # noqa: S108  # a path in the container
            assert any(Path(path).is_relative_to(mount) for mount in mounts)
        assert "NUMBA_CACHE_DIR=/var/cache/atoll" in dockerfile
        assert POD["spec"]["securityContext"]["runAsUser"] == int(re.findall(r"--uid (\d+)", dockerfile)[0])


class TestFleet:
    """deploy/kubernetes-fleet and deploy/kubernetes-autoscaling: several servers instead of one."""

    def test_its_volume_gets_what_the_command_makes(self, tmp_path: Path, postgresql_url: str) -> None:
        (tmp_path / "bucket").mkdir()
        bucket = BlobSettings(parse_place((tmp_path / "bucket").as_uri()))
        Store.open(tmp_path / "data", url=postgresql_url, blob_settings=bucket).close()
        Authority.open(tmp_path / "data" / "ca", now=0.0)
        folder = tmp_path / "second"
        made = {str(path.relative_to(folder)) for path in make_standby(tmp_path / "data", folder)}
        (container,) = SERVERS["spec"]["template"]["spec"]["initContainers"]
        (volume,) = SERVERS["spec"]["template"]["spec"]["volumes"]
        assert {one["path"] for one in volume["secret"]["items"]} == made
        script = container["command"][-1]
        assert set(re.findall(r"for file in (.*); do", script)[0].split()) == made
        assert container["env"] == [one for one in CONTAINER["env"] if one["name"] == "ATOLL_DATA"]
        assert SERVERS["metadata"]["name"] == STATEFUL_SET["metadata"]["name"]

    def test_it_changes_nothing_of_the_first_server_that_kubernetes_refuses_to_change(self) -> None:
        """``ValidateStatefulSetUpdate`` in Kubernetes' ``pkg/apis/apps/validation``: these fields, and no others."""
        mutable = {"replicas", "template", "updateStrategy", "minReadySeconds", "persistentVolumeClaimRetentionPolicy"}
        assert set(SERVERS["spec"]) <= mutable
        assert STATEFUL_SET["spec"]["podManagementPolicy"] == "Parallel", "else pods wait for each other to be ready"

    def test_one_pod_at_a_time_ends_and_has_the_time_to_drain(self) -> None:
        assert SERVERS["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
        labels = POD["metadata"]["labels"]
        (budget,) = (one for one in manifests("../kubernetes-fleet/fleet.yaml") if one["kind"] == "PodDisruptionBudget")
        assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
        assert POD["spec"]["terminationGracePeriodSeconds"] > 2 * config().drain_s
        spread = SERVERS["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert [one["labelSelector"]["matchLabels"] for one in spread] == [labels, labels]

    def test_the_autoscaler_asks_for_a_metric_that_there_is_and_the_adapter_gives_it(self) -> None:
        target = AUTOSCALER["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == ("StatefulSet", STATEFUL_SET["metadata"]["name"])
        assert AUTOSCALER["spec"]["minReplicas"] >= 2
        (asked,) = AUTOSCALER["spec"]["metrics"]
        name = asked["pods"]["metric"]["name"]
        assert name in metric_names()
        (rule,) = ADAPTER["rules"]["custom"]
        assert rule["seriesQuery"].startswith(f"{name}{{")
        assert re.fullmatch(rule["name"]["matches"], name)


class TestCompose:
    def test_the_server_runs_a_command_on_a_configuration(self, tmp_path: Path) -> None:
        service = COMPOSE["services"]["server"]
        is_a_command([re.sub(r"\$\{.*\}", "fl.example.org", word) for word in service["command"]])
        path = tmp_path / "server.toml"
        path.write_text(COMPOSE["configs"]["server"]["content"], encoding="utf-8")
        assert load_config({}, path).storage.database == "postgresql://atoll@database/atoll"
        assert "postgres" in service["build"]["args"]["EXTRAS"].split(",")

    def test_volumes_and_mounted_files_exist(self) -> None:
        for service in COMPOSE["services"].values():
            for volume in service["volumes"]:
                source = volume.split(":")[0]
                assert (DEPLOY / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]
            assert {one["source"] for one in service.get("configs", [])} <= set(COMPOSE["configs"])

    def test_prometheus_scrapes_the_server_and_grafana_asks_prometheus(self) -> None:
        scraping = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])
        assert scraping["scrape_configs"][0]["static_configs"][0]["targets"] == [f"server:{ServerConfig().port + 3}"]
        provisioned = DEPLOY / "grafana" / "provisioning"
        (source,) = yaml.safe_load((provisioned / "datasources" / "prometheus.yaml").read_text())["datasources"]
        assert source["url"] == "http://prometheus:9090"
        (provider,) = yaml.safe_load((provisioned / "dashboards" / "atoll.yaml").read_text())["providers"]
        mounted = [one.split(":")[1] for one in COMPOSE["services"]["grafana"]["volumes"]]
        assert provider["options"]["path"] in mounted


class TestStandby:
    """deploy/compose.standby.yaml: two servers with what they share."""

    def test_both_servers_run_commands_on_the_configuration(self, tmp_path: Path) -> None:
        for name in ("first", "second"):
            service = STANDBY["services"][name]
            assert [one["source"] for one in service["configs"]] == ["server"]
        is_a_command([re.sub(r"\$\{.*\}", "fl.example.org", word) for word in STANDBY["services"]["first"]["command"]])
        (script,) = STANDBY["services"]["second"]["command"]
        made, started = re.findall(r"(?:\|\||exec) (atoll [^;|]*)", script.replace("${ATOLL_HOST}", "fl.example.org"))
        check(Typed(made, tuple(made.split()[1:]), whole=True))
        check(Typed(started, tuple(started.split()[1:]), whole=True))
        path = tmp_path / "server.toml"
        path.write_text(STANDBY["configs"]["server"]["content"], encoding="utf-8")
        storage = load_config({}, path).storage
        assert (storage.database, storage.blobs) == ("postgresql://atoll@database/atoll", "s3://atoll/models")
        extras = STANDBY["services"]["first"]["build"]["args"]["EXTRAS"].split(",")
        assert {"postgres", "object-storage"} <= set(extras)

    def test_volumes_and_mounted_files_exist(self) -> None:
        for service in STANDBY["services"].values():
            for volume in service["volumes"]:
                source = volume.split(":")[0]
                assert (DEPLOY / source).exists() if source.startswith("./") else source in STANDBY["volumes"]
            assert {one["source"] for one in service.get("configs", [])} <= set(STANDBY["configs"])

    def test_the_balancer_knows_both_servers_and_their_ports(self) -> None:
        settings = (DEPLOY / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8")
        balancer = STANDBY["services"]["balancer"]
        assert set(balancer["environment"].values()) <= set(STANDBY["services"])
        main = ServerConfig().port
        for name in balancer["environment"]:
            ports = re.findall(rf'"\$\{{{name}\}}:(\d+)"', settings)
            assert ports == [str(main + offset) for offset in range(3)]
        assert f"check port {main + 3}" in settings
        assert balancer["ports"] == [f"{port}:{port}" for port in (main, main + 1, main + 2)]

    @pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy (Debian: haproxy) is not installed")
    def test_haproxy_reads_its_configuration(self) -> None:
        command = ["haproxy", "-c", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg")]
        names = {"FIRST": "127.0.0.1", "SECOND": "127.0.0.1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WAIT_S, check=False, env={**os.environ, **names}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stderr, done.stderr


class TestDashboard:
    def test_it_names_only_metrics_that_there_are(self) -> None:
        named = set(re.findall(r"\b(?:atoll|process)_[a-z_]+", json.dumps(BOARD)))
        assert len(named) > 20
        assert {name for name in named if name.startswith("atoll_")} <= metric_names()

    def test_what_the_autoscaler_goes_by_is_shown_for_each_server(self) -> None:
        (rule,) = ADAPTER["rules"]["custom"]
        series = rule["seriesQuery"].partition("{")[0]
        assert any(series in expr and "by (instance" in expr for expr in QUERIES), series

    def test_every_panel_says_what_it_shows_and_lies_beside_the_others(self) -> None:
        places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in BOARD["panels"]]
        assert len(set(places)) == len(places)
        assert all(one["description"] for one in BOARD["panels"])

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
    def test_promtool_reads_every_query(self, tmp_path: Path) -> None:
        rules = [
            {
                "record": f"atoll:query{number}",
                "expr": expr.replace("$__rate_interval", "5m").replace("$instance", ".*"),
            }
            for number, expr in enumerate(QUERIES)
        ]
        path = tmp_path / "rules.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}), encoding="utf-8")
        command = ["promtool", "check", "rules", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
