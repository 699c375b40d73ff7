"""The silo benchmarks run, and count what they say they count."""

from __future__ import annotations

import json
import socket

import pytest

from benchmarks.silo.__main__ import CASES, main
from benchmarks.silo.sockets import sent_bytes


def test_the_kernel_counts_what_is_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            before = sent_bytes()
            client.sendall(bytes(5000))
            assert peer.recv(5000, socket.MSG_WAITALL) == bytes(5000)
            assert sent_bytes() - before == 5000


@pytest.mark.ranks
def test_collectives_move_the_bytes_of_their_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "--smoke", "--json"]) == 0
    found = {figure["name"].split(",")[0]: figure for figure in json.loads(capsys.readouterr().out)[::2]}
    assert found["all_gather"]["limit"] == pytest.approx(0.5 * 65_536 / 1e6)
    assert all(0.9 < found[name]["ratio"] < 1.1 for name in ("all_reduce", "all_gather", "broadcast", "all_to_all"))
    assert found["reduce_scatter"]["ratio"] == pytest.approx(2.0, rel=0.1)


def test_an_unknown_case_is_refused_naming_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["colectives"])
    assert f"no such benchmark: colectives; there are {', '.join(CASES)}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["gpu", "--row", "sped"])
    assert "no such row: sped; there are document masks" in capsys.readouterr().err
