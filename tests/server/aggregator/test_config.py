"""The aggregator's settings, and the table of them in its page."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from atoll.server.aggregator.config import AggregatorConfig

PAGE = Path(__file__).parents[3] / "docs" / "aggregators.md"
COMPUTED = {"upstream", "enrol_port", "advertise", "metrics_port", "metrics"}
"""Settings whose default the table puts in words."""


def rows() -> dict[str, str]:
    """Each setting of the table, with its default."""
    table = PAGE.read_text().split("## Settings")[1].split("\n\n")[2]
    found: dict[str, str] = {}
    for line in table.splitlines()[2:]:
        names, defaults = (re.split(r", ", cell.strip()) for cell in line.strip("|").split("|")[:2])
        found |= {name.strip("`"): default.strip("`") for name, default in zip(names, defaults, strict=True)}
    return found


def test_the_table_has_every_setting_with_its_default() -> None:
    found = rows()
    fields = {name: item.default for name, item in AggregatorConfig.model_fields.items() if name != "limits"}
    assert found.keys() == fields.keys()
    for name, default in fields.items():
        if name not in COMPUTED:
            written = f"{default:g}" if isinstance(default, float) else str(default)
            assert found[name] == written, name


@pytest.mark.parametrize("upstream", ["server", "server:", ":7400", "server:0", "server:70000", "server:7x"])
def test_an_upstream_is_host_and_port(upstream: str) -> None:
    with pytest.raises(ValidationError, match="HOST:PORT"):
        AggregatorConfig(upstream=upstream)


def test_secondary_ports_follow_the_main_one() -> None:
    assert AggregatorConfig().port_after(7410, 3, None) == 7413
    assert AggregatorConfig(port=0).port_after(7410, 3, None) == 0
    assert AggregatorConfig(port=0).port_after(7410, 3, 99) == 99


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ValidationError, match="keep_model"):
        AggregatorConfig.model_validate({"keep_model": 3})
