"""The examples learn what their first lines say."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from atoll.client import Participant
from atoll.client.cli.locate import locate, make_participant
from atoll.client.opacus import OpacusParticipant
from atoll.client.testing import FakeServer, make_task
from atoll.client.torch import TorchParticipant
from atoll.statistics import Answerer, TableError
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery
from tests.patience import WAIT_S

EXAMPLES = Path(__file__).parents[2] / "examples"
BEHIND = {"sklearn.datasets": "scikit-learn", "sklearn.linear_model": "scikit-learn", "sklearn.metrics": "scikit-learn"}
BEHIND |= {"atoll.client.torch": "torch", "atoll.client.opacus": "opacus"}
"""The distribution that a module is of, or needs, where its name does not say so."""


def example(name: str, **arguments: str) -> Participant:
    """A participant, made as ``atoll client start`` makes it."""
    file, _, attribute = name.partition(":")
    return make_participant(f"{EXAMPLES / file}:{attribute}", arguments)


def first_model(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, npt.NDArray[Any]]:
    """The model that a script writes into the folder in which it is run."""
    with monkeypatch.context() as within:
        within.chdir(folder)
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    return dict(load_file(folder / "initial.safetensors"))


@pytest.mark.system
@pytest.mark.parametrize(("script", "participant"), [("sklearn_client.py", "Digits"), ("torch_client.py", "digits")])
def test_four_shards_of_digits(script: str, participant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initial = first_model(script, tmp_path, monkeypatch)
    clients = [example(f"{script}:{participant}", shard=str(shard), shards="4") for shard in range(4)]
    result = FakeServer(initial, window_s=WAIT_S).run(*clients, rounds=4, settings={"epochs": 3, "lr": 0.1})
    accuracies = [report.evaluation["accuracy"] for report in result.rounds[-1].reports]
    assert np.mean(accuracies) > 0.85
    assert not any(report.partial for report in result.rounds[-1].reports)


@pytest.mark.system
def test_digits_with_dp_sgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It learns within its budget, and takes no part in what would go beyond."""
    script = "opacus_client.py"
    initial = first_model(script, tmp_path, monkeypatch)
    clients = [example(f"{script}:digits", shard=str(shard), shards="4", epsilon="5.3") for shard in range(2)]
    server = FakeServer(initial, state=tmp_path, window_s=WAIT_S)
    result = server.run(*clients, rounds=7, settings={"epochs": 3})
    assert [len(played.reports) for played in result.rounds] == [2, 2, 2, 2, 0, 0, 0]
    assert "of epsilon 5.3 (delta 0.0001) are spent on each sample" in result.rounds[-1].declined[0][1]
    judge = example("torch_client.py:digits")
    assert isinstance(judge, TorchParticipant)
    judge.module = cast("OpacusParticipant", clients[0]).module
    # The noise is drawn anew each time: 0.93 on average with a standard deviation of 0.03 (45 images); chance is 0.1.
    assert judge.evaluate(result.model, make_task()).metrics["accuracy"] > 0.7
    spent = [json.loads((tmp_path / str(client) / "privacy" / "samples-data.json").read_text()) for client in range(2)]
    assert all(4.0 < account["epsilon"] <= 5.3 for account in spent)


@pytest.mark.parametrize(
    "script", ["numpy_client.py", "sklearn_client.py", "torch_client.py", "opacus_client.py", "simulation.py"]
)
def test_the_line_that_installs_an_example_brings_what_it_imports(script: str) -> None:
    tree = ast.parse((EXAMPLES / script).read_text())
    wanted = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.names[0].name if isinstance(node, ast.Import) else str(node.module)
            wanted.add(BEHIND.get(module, module.partition(".")[0]))
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]
    found = re.search(
        r"pip install -c constraints.txt -e (?:\.|\"\.\[(.+)\]\")( .+)?$", ast.get_docstring(tree) or "", re.MULTILINE
    )
    extras, others = ((found[1] or "").split(","), (found[2] or "").split()) if found else ([], [])
    brought = [*project["dependencies"], *others]
    for extra in filter(None, extras):
        brought += project["optional-dependencies"][extra]
    assert wanted - {"atoll"} - sys.stdlib_module_names <= {re.split(r"[^a-z-]", one)[0] for one in brought}


def test_ridge() -> None:
    clients = [example("numpy_client.py:Ridge", seed=str(seed)) for seed in range(3)]
    result = FakeServer({"weight": np.zeros(8, np.float32)}).run(*clients, rounds=5)
    np.testing.assert_allclose(result.model["weight"], np.arange(8), atol=0.2)
    losses = [played.reports[0].metrics["loss"] for played in result.rounds]
    assert losses[-1] < losses[0]


def test_fedadam_and_fedavg_learn_digits_in_a_simulation() -> None:
    compare = cast("Any", locate(f"{EXAMPLES / 'simulation.py'}:compare"))
    accuracies = {name: result.history.metric("server/accuracy") for name, result in compare(rounds=6)}
    assert accuracies.keys() == {"fedavg", "fedadam"}
    assert all(curve[-1] > 0.6 for curve in accuracies.values())  # chance is 0.1


def test_the_numpy_client_has_at_most_fifteen_lines() -> None:
    lines = (EXAMPLES / "numpy_client.py").read_text().splitlines()
    assert sum(bool(line.strip()) and not line.strip().startswith('"""') for line in lines) <= 15


def test_a_table_of_a_csv_file_keeps_its_names(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("mean radius,label\n1.5,benign\n,malignant\n")
    query = StatisticsQuery(("mean radius",), (CategoryColumn("label", ("benign", "malignant")),))
    table = example("table_client.py:Hospital", file=str(tmp_path / "rows.csv")).table()
    assert Answerer(query, table).rows == 2
    with pytest.raises(TableError, match="no column 'age'"):
        Answerer(StatisticsQuery(("age",)), table)
