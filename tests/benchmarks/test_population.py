from benchmarks.__main__ import CASES
from benchmarks.options import Options


def test_every_figure_is_there() -> None:
    figures = CASES["population"].run(Options(smoke=True))
    assert len(figures) == 4
    assert all(figure.value > 0 and figure.limit is not None for figure in figures)
    held = figures[0]
    assert held.limit is not None
    assert held.value < held.limit / 4, "50 invitations hold what they share once"
