"""The tables of rounds and participants, and their files, read back by other readers."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pandas
import pyarrow.parquet
import pytest

from atoll.operator import BadInputError, History, Operator, RoundSummary, RunDetail
from atoll.operator.completing import completed
from atoll.operator.table_files import writer_for
from atoll.operator.tables import PARTICIPANT_COLUMNS, ROUND_COLUMNS, participant_table, round_table, unformulaic
from atoll.wire.v1 import control_pb2
from tests.operator.exports.samples import DETAIL, HOSTILE, JOB, ROUNDS, RUN, a_member, a_round
from tests.server.cli.conftest import a_round as served_round
from tests.server.cli.conftest import serve, summary

PAGE = Path(__file__).parents[2] / "docs" / "exports.md"
ARROW = {"int64": "int64", "float64": "double", "string": "string", "bool": "bool"}
WITH_MEMBERS = RunDetail(
    RUN,
    (
        a_round(0, metrics={"train/loss": 1.0}, members=(a_member(), a_member("pb", "failed", "=1+1"))),
        a_round(1, members=(a_member(),)),
    ),
    0,
    JOB,
)


def test_a_round_is_a_row_with_its_metrics() -> None:
    row = round_table(ROUNDS).records()[1]
    assert list(row)[: len(ROUND_COLUMNS)] == list(ROUND_COLUMNS)
    assert (row["round"], row["attempt"], row["phase"], row["duration_s"], row["draw_s"]) == (
        0,
        1,
        "released",
        5.0,
        0.5,
    )
    assert (row["train/loss"], row["eval/examples"], row["publish_s"], row["fragment"]) == (2.0, None, None, None)


def test_a_participant_of_a_round_is_a_row() -> None:
    rows = participant_table(WITH_MEMBERS.rounds).records()
    assert list(rows[0])[: len(PARTICIPANT_COLUMNS)] == list(PARTICIPANT_COLUMNS)
    assert [(row["round"], row["participant"], row["counted"]) for row in rows] == [
        (0, "pa", True),
        (0, "pb", False),
        (1, "pa", True),
    ]
    assert (rows[0]["claimed_fit_s"], rows[0]["claimed_upload_s"], rows[0]["train/loss"]) == (1.5, None, 0.5)


def test_a_history_without_participants_says_how_to_get_them() -> None:
    with pytest.raises(BadInputError, match=r"without participants\n.*history\(members=True\)"):
        History(DETAIL).table(by_participant=True)
    assert participant_table(()).rows == ()


def test_a_metric_cannot_take_the_place_of_a_column() -> None:
    row = round_table((a_round(3, metrics={"round": 0.5, "metric/round": 0.25}),)).records()[0]
    assert (row["round"], row["metric/round"], row["metric/metric/round"]) == (3, 0.5, 0.25)


def test_csv_is_read_back(tmp_path: Path) -> None:
    path = History(DETAIL).to_csv(tmp_path / "history.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (rows[1]["train/loss"], rows[0]["train/loss"], rows[1]["closed_at"]) == ("2.0", "", "105.0")
    frame = pandas.read_csv(path)
    assert frame["eval/accuracy"].tolist()[1:] == [0.1, 0.2, 0.75]
    History(WITH_MEMBERS).to_csv(path, by_participant=True)
    assert pandas.read_csv(path)["counted"].tolist() == [True, False, True]
    assert [one.name for one in tmp_path.iterdir()] == ["history.csv"]


def test_parquet_has_the_documented_types(tmp_path: Path) -> None:
    for by_participant, columns in ((False, ROUND_COLUMNS), (True, PARTICIPANT_COLUMNS)):
        path = History(WITH_MEMBERS).to_parquet(tmp_path / "history.parquet", by_participant=by_participant)
        found = pyarrow.parquet.read_table(path)
        types = {field.name: str(field.type) for field in found.schema}
        assert types == {name: ARROW[dtype] for name, dtype in columns.items()} | {"train/loss": "double"}
        assert found.to_pylist() == History(WITH_MEMBERS).table(by_participant=by_participant).records()


def test_a_run_without_a_round_has_typed_columns(tmp_path: Path) -> None:
    path = History(RunDetail(RUN, (), 0, JOB)).to_parquet(tmp_path / "history.parquet")
    assert pyarrow.parquet.read_table(path).num_rows == 0
    assert pyarrow.parquet.read_schema(path).names == list(ROUND_COLUMNS)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1"])
def test_no_text_is_a_formula_in_a_spreadsheet(text: str) -> None:
    assert unformulaic(text) == f"'{text}"


def test_participants_text_in_csv_is_no_formula_and_no_new_line(tmp_path: Path) -> None:
    path = History(WITH_MEMBERS).to_csv(tmp_path / "history.csv", by_participant=True)
    assert "'=1+1" in path.read_text(encoding="utf-8")
    hostile = RunDetail(RUN, (a_round(0, metrics={HOSTILE: 1.0, "=2": 0.5}),), 0, JOB)
    path = History(hostile).to_csv(tmp_path / "history.csv")
    with path.open(encoding="utf-8", newline="") as file:
        heads, row = csv.reader(file)
    assert heads[-2:] == [HOSTILE, "'=2"]
    assert row[-2:] == ["1.0", "0.5"]


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"away/history\.csv cannot be written: No such file"):
        History(DETAIL).to_csv(tmp_path / "away" / "history.csv")
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'Parquet needs pyarrow: pip install .*"\.\[parquet\]"'):
        History(DETAIL).to_parquet(tmp_path / "history.parquet")


def test_the_ending_chooses_the_format() -> None:
    with pytest.raises(BadInputError, match=r"'\.xlsx'; known are \.csv and \.parquet"):
        writer_for(Path("history.xlsx"))


def test_rounds_that_an_answer_left_out_are_fetched_one_by_one() -> None:
    every = tuple(a_round(number, members=(a_member(),)) for number in range(6))
    bare = tuple(a_round(number) for number in range(6))
    asked: list[int] = []

    def fetch(number: int) -> RunDetail:
        asked.append(number)
        return RunDetail(RUN, every[number : number + 1], 0, JOB)

    newest = RunDetail(RUN, (*bare[3:4], *every[4:]), 0, JOB)
    assert completed(newest, fetch, members=True).rounds == every
    assert asked == [0, 1, 2, 3]
    asked.clear()
    assert completed(newest, fetch, members=False).rounds == (*every[:3], *bare[3:4], *every[4:])
    assert asked == [0, 1, 2]


def test_earlier_attempts_at_the_first_round_of_an_answer_are_fetched() -> None:
    both = (a_round(4, phase="abandoned"), a_round(4, attempt=1))
    asked: list[int] = []

    def fetch(number: int) -> RunDetail:
        asked.append(number)
        return RunDetail(RUN, tuple(one for one in both if one.round == number), 0, JOB)

    assert completed(RunDetail(RUN, both[1:], 0, JOB), fetch, members=False).rounds == both
    assert asked == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("columns", [ROUND_COLUMNS, PARTICIPANT_COLUMNS], ids=["rounds", "participants"])
def test_the_page_documents_every_column(columns: dict[str, str]) -> None:
    rows = re.findall(r"^\| (`.+?`) \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name: dtype for names, dtype in rows for name in re.findall(r"`(\w+)`", names)}
    assert {name: documented.get(name) for name in columns} == dict(columns)


def test_a_sequence_of_rounds_is_not_changed() -> None:
    rounds: list[RoundSummary] = list(ROUNDS)
    round_table(rounds)
    assert tuple(rounds) == ROUNDS


def test_the_histories_of_a_run_are_now_and_at_its_end() -> None:
    running, ended = summary(), summary(control_pb2.RUN_STATUS_FINISHED, 2)
    for fake in serve(lambda server: server.add_insecure_port("127.0.0.1:0")):
        first, second = served_round(0), served_round(1)
        fake.control.rounds = [first]
        change = control_pb2.WatchRunResponse(summary=running, round=first)
        fake.control.watches = [[change, control_pb2.WatchRunResponse(summary=ended, round=second)]]
        with Operator.connect(fake.address, insecure=True) as operator:
            histories = operator.run("rabc").histories()
            assert [one.round for one in next(histories)] == [0]
            fake.control.rounds.append(second)
            fake.control.status = control_pb2.RUN_STATUS_FINISHED
            assert [[one.round for one in history] for history in histories] == [[0, 1]]
