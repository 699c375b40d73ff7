import resource

import pytest

from benchmarks import connected, crowd
from benchmarks.options import Options


def test_a_crowd_that_the_system_has_no_file_descriptors_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: pytest.fail("beyond the limit"))
    with pytest.raises(ValueError, match="500 participants need 2064 file descriptors, 1000 are allowed"):
        crowd.raise_limit(500)


@pytest.mark.system
@pytest.mark.every_case
def test_a_few_connected_participants_are_measured() -> None:
    """A commit runs the same in `make bench-smoke`, without the assertions."""
    figures = {figure.name: figure for figure in connected.run(Options(smoke=True, clients=6, rounds=2))}
    assert figures["6 connected, 3 drawn, 10 KB: a round"].value > 0
    assert figures["6 connected: server memory each, at rest"].value > 0
