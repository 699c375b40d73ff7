from __future__ import annotations

import sys
from pathlib import Path

import pytest

from atoll.client import UsageError
from atoll.client.cli.locate import locate, make_participant

SOURCE = """
from atoll.client import Participant

class Trains(Participant):
    def fit(self, model, task):
        raise NotImplementedError

class Good(Trains):
    def __init__(self, shard: int = 0, name: str = "x", rate=0.1):
        self.values = (shard, name, rate)

class Outer:
    class Inner(Trains):
        pass

class Idle(Participant):
    examples = 3

class Raising(Trains):
    def __init__(self):
        self.rows = open("no-such-file.csv").read()

class Plain:
    pass

def factory(shard):
    return Good(shard)

def stranger():
    return 3

READY = Good(7)
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a module, as the current one."""
    (tmp_path / "mine_locate.py").write_text(SOURCE)
    (tmp_path / "broken_locate.py").write_text("1 / 0\n")
    (tmp_path / "typo_locate.py").write_text("def f(:\n")
    (tmp_path / "needs_locate.py").write_text("import no_such_package_here\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine_locate", "broken_locate", "typo_locate", "needs_locate"):
        sys.modules.pop(name, None)
    return tmp_path


def values(attribute: str, **arguments: str) -> object:
    return vars(make_participant(f"mine_locate:{attribute}", arguments))["values"]


def test_arguments_take_the_type_that_the_parameter_wants() -> None:
    assert values("Good") == (0, "x", 0.1)
    assert values("Good", shard="3", name="007", rate="2e-3") == (3, "007", 0.002)
    assert values("Good", rate="adaptive") == (0, "x", "adaptive")


def test_files_by_their_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "deep").mkdir()
    (here / "deep" / "helper_locate.py").write_text("SHARD = 5\n")
    (here / "deep" / "filed_locate.py").write_text(
        "from helper_locate import SHARD\n" + SOURCE.replace("Good(7)", "Good(SHARD)")
    )
    ready = make_participant("deep/filed_locate.py:READY", {})
    assert vars(ready)["values"] == (5, "x", 0.1)
    monkeypatch.delitem(sys.modules, "filed_locate")
    with pytest.raises(UsageError, match=r"no file gone\.py in /"):
        make_participant("gone.py:READY", {})


def test_functions_and_instances_and_nested_classes() -> None:
    assert values("factory", shard="4") == (4, "x", 0.1)
    assert values("READY") == (7, "x", 0.1)
    assert type(make_participant("mine_locate:Outer.Inner", {})).__name__ == "Inner"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mine_locate", {}, "expected MODULE:NAME"),
        (":Good", {}, "expected MODULE:NAME"),
        ("nowhere:Good", {}, "no module 'nowhere' in /"),
        ("mine_locate.sub:Good", {}, "no module 'mine_locate.sub'"),
        (
            "mine_locate:Bad",
            {},
            "mine_locate has no Bad; its classes and functions are Trains, Good, Outer, Idle, Raising",
        ),
        ("broken_locate:X", {}, "'broken_locate' fails to import: ZeroDivisionError"),
        ("typo_locate:X", {}, "'typo_locate' fails to import: SyntaxError"),
        ("needs_locate:X", {}, "'needs_locate' needs 'no_such_package_here', which is not installed"),
        ("mine_locate:Plain", {}, "is the class Plain; a subclass of atoll.client.Participant is needed"),
        ("mine_locate:NUMBER", {}, "is of type int; a subclass"),
        ("mine_locate:stranger", {}, "a subclass of atoll.client.Participant is needed"),
        ("mine_locate:Good", {"size": "3"}, "unexpected keyword argument 'size'; give arguments as --arg NAME=VALUE"),
        ("mine_locate:Good", {"shard": "three"}, r"--arg shard=three: 'three' is not a whole number \(shard: int\)"),
        ("mine_locate:Idle", {}, r"mine_locate:Idle has no method fit\(model, task\)"),
        ("mine_locate:factory", {}, "missing a required argument: 'shard'"),
        ("mine_locate:READY", {"shard": "1"}, "is a participant already and takes no arguments"),
    ],
)
def test_errors_say_what_is_wrong(name: str, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_participant(name, arguments)


def test_the_current_directory_is_on_the_path_once(here: Path) -> None:
    locate("mine_locate:NUMBER")
    locate("mine_locate:NUMBER")
    assert sys.path.count(str(here)) == 1


def test_a_constructors_exception_is_reported_in_three_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "atoll.client")
    with pytest.raises(UsageError) as caught:
        make_participant("mine_locate:Raising", {})
    what, where, more = str(caught.value).splitlines()
    assert what.startswith("mine_locate:Raising cannot be made: FileNotFoundError: ")
    assert where.endswith('mine_locate.py, line 21, in __init__: self.rows = open("no-such-file.csv").read()')
    assert "--log-level debug" in more
    assert "Traceback" in caplog.text


def test_a_missing_package_is_named_as_pip_knows_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "learns_locate.py").write_text("from sklearn.linear_model import SGDClassifier\n")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.linear_model", raising=False)
    with pytest.raises(UsageError, match="which is not installed: pip install scikit-learn"):
        make_participant("learns_locate:X", {})
