"""A round over two servers beside one: both take the same share of it."""

import pytest

from benchmarks.__main__ import CASES, main
from benchmarks.options import Options


@pytest.mark.system
@pytest.mark.every_case
def test_two_servers_receive_and_fold_as_much_as_each_other() -> None:
    """A commit runs the same in `make bench-smoke`, without the assertions."""
    options = Options(smoke=True, only="two-servers")
    figures = {figure.name.strip().partition(":")[0]: figure for figure in CASES["fleet"].run(options)}
    release = figures["1 MB, 2 participants, 2 servers beside 1"]
    assert release.limit is not None
    assert min(release.value, release.limit) > 0
    received, folded = figures["received a round"], figures["updates folded a round"]
    assert (received.value, received.limit, received.ok) == (1.0, 1.0, True)
    assert (folded.value, folded.limit, folded.ok) == (1.0, 1.0, True)


def test_a_part_that_fleet_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fleet", "--only", "three-servers"])
    assert "fleet has no part three-servers; there are check-ins, " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["rounds", "--only", "two-servers"])
    assert "rounds has no setting --only" in capsys.readouterr().err
