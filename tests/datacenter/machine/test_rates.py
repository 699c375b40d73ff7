"""Rates: the data sheets, and files of measured ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.datacenter.machine import DATA_SHEETS, RatesError, load_rates, rates_of, save_rates
from atoll.datacenter.machine.rates import MAX_FILE_BYTES


def test_data_sheets() -> None:
    assert set(DATA_SHEETS) == {"a100", "h100", "h100-500w", "h200", "b200", "mi300x"}
    assert rates_of("H100").matmul("bfloat16") == pytest.approx(989.4e12)
    for rates in DATA_SHEETS.values():
        known = rates.matmul_flops_per_s.known()
        assert known["float32"] < known["tfloat32"] < known["bfloat16"] == known["float16"]
        assert rates.intra.bytes_per_s > rates.inter.bytes_per_s
        assert rates.intra.alpha_s < rates.inter.alpha_s
        assert rates.ranks_per_node == 8
    assert DATA_SHEETS["h200"].matmul_flops_per_s == DATA_SHEETS["h100"].matmul_flops_per_s


def test_a_format_without_a_rate_is_refused_naming_those_there_are() -> None:
    with pytest.raises(RatesError, match=r'A100.*"float8" is known; known: float32, tfloat32, bfloat16, float16'):
        DATA_SHEETS["a100"].matmul("float8")


def test_saved_rates_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    save_rates(DATA_SHEETS["a100"], path)
    assert load_rates(path) == DATA_SHEETS["a100"] == rates_of(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": -1}, r"memory_bytes = -1: Input should be greater than or equal to 1"),
        ({"memory_bytes_per_s": "fast"}, r'memory_bytes_per_s = "fast": Input should be a valid number'),
        ({"colour": "green"}, r'colour = "green": Extra inputs are not permitted'),
        ({"intra": {"alpha_s": 0.0, "bytes_per_s": 0}}, r"intra.bytes_per_s = 0: Input should be greater than 0"),
        ({"matmul_flops_per_s": {"float33": 1.0}}, r"matmul_flops_per_s.float33 = 1.0: Extra inputs"),
    ],
)
def test_a_wrong_file_is_refused_naming_file_key_and_value(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "rates.json"
    save_rates(DATA_SHEETS["a100"], path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RatesError, match=rf"rates.json: {message}"):
        load_rates(path)


def test_what_is_no_json_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text("fast")
    with pytest.raises(RatesError, match=r"rates.json: Invalid JSON"):
        load_rates(path)
    path.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(RatesError, match="at most"):
        load_rates(path)


def test_an_unknown_machine_is_refused_naming_those_there_are() -> None:
    with pytest.raises(
        RatesError, match=r'no rates of "h900"; there are a100, h100, h100-500w, h200, b200, mi300x, or a \.json'
    ):
        rates_of("h900")
