"""The manifests under deploy/kubernetes* are what Kubernetes accepts; an unknown field is an error."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.test_deploy import DEPLOY
from tests.patience import WAIT_S

FOLDERS = sorted(path.name for path in DEPLOY.glob("kubernetes*"))
NO_OBJECTS = {"kustomization.yaml", "servers.yaml", "prometheus-adapter.yaml"}
"""How to render a folder, a patch of an object, and the settings of another program."""
FILES = sorted(path for path in DEPLOY.glob("kubernetes*/*.yaml") if path.name not in NO_OBJECTS)


def kinds(objects: Iterable[Any]) -> list[str]:
    """Validate the objects; returns their kinds."""
    found = []
    for one in objects:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
        found.append(one["kind"])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_object_is_valid(path: Path) -> None:
    assert kinds(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_a_wrong_manifest_is_noticed() -> None:
    servers = yaml.safe_load((DEPLOY / "kubernetes" / "server.yaml").read_text(encoding="utf-8"))
    servers["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kinds([servers])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_renders_to_valid_objects(folder: str) -> None:
    render = ["kubectl", "kustomize", str(DEPLOY / folder)]
    rendered = subprocess.run(render, capture_output=True, timeout=WAIT_S, check=True).stdout
    assert b"image: atoll\n" not in rendered
    assert "StatefulSet" in kinds(yaml.safe_load_all(rendered))
    if folder in {"kubernetes-fleet", "kubernetes-autoscaling"}:
        assert (b"replicas:" in rendered) == (folder == "kubernetes-fleet"), "else two would decide"
