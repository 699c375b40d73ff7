"""deploy/compose.yaml: the command lines of its services, run in their order without containers.

Each volume becomes a folder, and the host ``server`` becomes this machine. The parts that containers add (image, users,
networks, the order of ``depends_on``) are not tested.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll.client._study.frameworks import FRAMEWORKS
from atoll.client._study.project import write_study
from atoll.console.site import DEFAULT_PORT
from atoll.formats.arrays import load
from tests.console.browser import Browser
from tests.docs.commands import ROOT, Typed, arguments_of, check, words_of
from tests.ports import free_ports
from tests.system.processes import ATOLL, nursery
from tests.system.servers import Server, serving
from tests.system.studies import shell

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SITES = ("site-1", "site-2", "site-3")
OF_IMAGE = {"/var/lib/atoll", "/var/cache/atoll"}
"""Folders that the image makes for its user: a new volume there belongs to that user."""
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def entry_point() -> list[str]:
    """The words that the image starts with."""
    (found,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def command_of(name: str) -> list[str]:
    """The words that a service runs."""
    return [*SERVICES[name].get("entrypoint", entry_point()), *SERVICES[name].get("command", [])]


def mounts_of(name: str) -> dict[str, str]:
    """What is mounted, by the path in the container: a volume's name, or STUDY."""
    found = {}
    for volume in SERVICES[name]["volumes"]:
        parts = re.sub(r"\$\{(\w+)[^}]*\}", r"\1", volume).split(":")
        found[parts[1]] = parts[0]
    return found


def lines() -> Iterator[tuple[str, str]]:
    """The command of each service as a line of a shell."""
    for name in SERVICES:
        words = command_of(name)
        yield name, words[-1] if words[:2] == ["sh", "-c"] else shlex.join(words)


@pytest.mark.parametrize(("name", "line"), list(lines()))
def test_every_service_runs_a_command_that_there_is(name: str, line: str) -> None:
    found = [arguments for words in words_of(line) if (arguments := arguments_of(words)) is not None]
    assert found, name
    for arguments in found:
        check(Typed(line, tuple(arguments), whole=True))


def test_volumes_lie_in_folders_of_the_images_user_and_are_declared() -> None:
    for name in SERVICES:
        for path, volume in mounts_of(name).items():
            assert volume == "STUDY" or (path in OF_IMAGE and volume in COMPOSE["volumes"]), (name, path, volume)
    assert all(f" {path}" in DOCKERFILE for path in OF_IMAGE)
    states = [mounts_of(site)["/var/lib/atoll"] for site in SITES]
    assert len(set(states)) == len(SITES), "sites share an identity"


def test_services_wait_for_what_they_need() -> None:
    assert SERVICES["tokens"]["depends_on"] == {"server": {"condition": "service_healthy"}}
    for name in (*SITES, "operator"):
        assert SERVICES[name]["depends_on"] == {"tokens": {"condition": "service_completed_successfully"}}
        assert SERVICES[name]["healthcheck"] == {"disable": True}, "the image's check is for a server"
    assert "HEALTHCHECK" in DOCKERFILE


def test_the_console_is_published_on_loopback_alone() -> None:
    console = SERVICES["console"]
    assert console["depends_on"] == {"server": {"condition": "service_healthy"}}
    assert console["ports"] == [f"127.0.0.1:{DEFAULT_PORT}:{DEFAULT_PORT}"]
    assert f"http://127.0.0.1:{DEFAULT_PORT}" in console["command"]
    assert "console" in SERVICES["server"]["build"]["args"]["EXTRAS"].split(",")


@pytest.mark.system
def test_its_console_opens_by_the_link_that_it_prints(tmp_path: Path) -> None:
    with nursery(tmp_path / "volumes") as processes, serving(processes, "federation") as server:
        port = free_ports()
        words = [
            word.replace("0.0.0.0", "127.0.0.1").replace(str(DEFAULT_PORT), str(port))  # noqa: S104 - of a container
            for word in command_of("console")[1:]
        ]
        at = ("--port", str(port), "--server", server.address, "--data", str(server.data))
        process = processes.start((*ATOLL, *words, *at), "console")
        link = process.wait_for(lambda lines: next((one for one in lines if "/open/" in one), None), "link")
        browser = Browser(port)
        assert browser.open(link).status == 200
        assert "There is no run yet." in browser.get("/").text


@pytest.mark.system
def test_its_command_lines_train_a_model(tmp_path: Path) -> None:
    study = tmp_path / "study"
    write_study(study, FRAMEWORKS["numpy"])
    server_options = [word for word in command_of("server")[3:] if word != "server"]
    with (
        nursery(tmp_path / "volumes") as processes,
        serving(processes, "federation", *server_options, "127.0.0.1") as server,
    ):
        sites = [f"{line_of(name, tmp_path, server)} &" for name in SITES]
        script = [line_of("tokens", tmp_path, server), *sites, line_of("operator", tmp_path, server)]
        printed = shell("\n".join(script), study, ATOLL_DATA=str(server.data), ATOLL_SERVER=server.address)
        assert "round 20 released, 3 of 3 reported" in printed
        shell("atoll run model latest -o model.safetensors", tmp_path, ATOLL_DATA=str(server.data))
    assert load(tmp_path / "model.safetensors").keys() == {"weight", "bias"}


def line_of(name: str, folder: Path, server: Server) -> str:
    """A service's line, with its volumes as folders and the server's address on this machine."""
    line = dict(lines())[name].replace("server:7400", server.address)
    for path, volume in mounts_of(name).items():
        if volume != "STUDY":
            (folder / "volumes" / volume).mkdir(parents=True, exist_ok=True)
            line = line.replace(path, str(folder / "volumes" / volume))
    return line
