"""docs/exports.md: its snippets run, and its page of columns is checked in tests/operator/test_tables.py."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from tests.docs.commands import ROOT

pytestmark = pytest.mark.slow

SNIPPETS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "exports.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def test_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    names: dict[str, Any] = {}
    store = f"sqlite:///{tmp_path}/mlflow.db"  # MLflow keeps a store open by its address, for all tests of a process
    for snippet in SNIPPETS:
        exec(compile(snippet.replace("sqlite:///mlflow.db", store), "docs/exports.md", "exec"), names)  # noqa: S102  # the page is ours
    with (tmp_path / "rounds.csv").open(encoding="utf-8", newline="") as file:
        assert [row["train/loss"] for row in csv.DictReader(file)] == ["1.0", "0.5", "0.3333333333333333", ""]
    assert pyarrow.parquet.read_table(tmp_path / "participants.parquet").num_rows == 12
    np.testing.assert_array_equal(names["weights"]["w"], names["result"].best_model["w"])
    np.testing.assert_array_equal(names["tensors"]["w"], names["weights"]["w"])
    assert "eval/accuracy 0.8" in capsys.readouterr().out
    run_id = names["result"].to_mlflow("studies", tracking_uri=store)
    assert (tmp_path / "mlruns" / "1" / run_id / "artifacts" / "report.html").is_file()
