from __future__ import annotations

from collections.abc import Callable

import pytest

from atoll.client import SettingError, Settings

SETTINGS = Settings({"lr": 0.5, "epochs": 3, "whole": 4.0, "nesterov": True, "name": "adam"})


def test_values_come_with_their_type() -> None:
    assert SETTINGS.number("lr") == 0.5
    assert SETTINGS.number("epochs") == 3.0
    assert SETTINGS.integer("epochs") == 3
    assert SETTINGS.integer("whole") == 4
    assert SETTINGS.flag("nesterov") is True
    assert SETTINGS.text("name") == "adam"
    assert dict(SETTINGS) == {"lr": 0.5, "epochs": 3, "whole": 4.0, "nesterov": True, "name": "adam"}


def test_defaults_fill_in() -> None:
    assert SETTINGS.number("momentum", 0.9) == 0.9
    assert SETTINGS.flag("amsgrad", default=False) is False
    assert SETTINGS.number("lr", 0.9) == 0.5


@pytest.mark.parametrize(
    ("read", "name", "message"),
    [
        (SETTINGS.number, "name", "'name' is 'adam' \\(str\\); a number is needed"),
        (SETTINGS.number, "nesterov", "a number is needed"),
        (SETTINGS.integer, "lr", "'lr' is 0.5 \\(float\\); a whole number"),
        (SETTINGS.integer, "nesterov", "a whole number"),
        (SETTINGS.flag, "epochs", "true or false"),
        (SETTINGS.text, "epochs", "a text"),
        (SETTINGS.text, "missing", "no setting 'missing' \\(it has: epochs, lr, name"),
    ],
)
def test_errors_name_the_setting_and_what_is_needed(read: Callable[[str], object], name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        read(name)
