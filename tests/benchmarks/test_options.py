import pytest

from benchmarks.__main__ import main
from benchmarks.options import Case, Options


def test_a_setting_that_a_case_does_not_heed_is_refused() -> None:
    case = Case(lambda _: [], frozenset({"clients"}))
    assert case.refused(Options(smoke=True, clients=3)) == []
    assert case.refused(Options(clients=3, tls=False, model_mb=1.0)) == ["model_mb", "tls"]


def test_it_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rounds", "--model-mb", "3"])
    assert "rounds has no setting --model-mb" in capsys.readouterr().err


def test_the_command_names_the_settings_given() -> None:
    assert Options(model_mb=400, tls=False).command("bulk") == "python -m benchmarks bulk --model-mb 400 --insecure"
