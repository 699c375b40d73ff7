from benchmarks import privacy_noise
from benchmarks.__main__ import CASES
from benchmarks.options import Options


def test_every_mechanism_is_measured_beside_numpy() -> None:
    figures = {figure.name: figure for figure in CASES["privacy-noise"].run(Options(smoke=True))}
    assert {name.partition(",")[0] for name in figures} >= {"tree", "banded", "two threads", "sigma 2^40"}
    assert all(figure.value > 0 and figure.limit == figures[privacy_noise.PLAIN].value for figure in figures.values())
    assert {figure.target for name, figure in figures.items() if name.startswith("sigma")} == {privacy_noise.TARGET}
