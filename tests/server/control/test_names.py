import pytest

from atoll.server.control.names import shown_names


@pytest.mark.parametrize(
    ("organisations", "names"),
    [
        ({"pa": "north", "pb": "south"}, {"pa": "north", "pb": "south"}),
        ({"pa": "north", "pb": "north", "pc": "south"}, {"pa": "north/pa", "pb": "north/pb", "pc": "south"}),
        ({"pa": "acme", "pb": "acme"}, {"pa": "pa", "pb": "pb"}),
        ({"pa": "acme"}, {"pa": "acme"}),
        ({"pa": "default", "pb": "north"}, {"pa": "pa", "pb": "north"}),
        ({"pa": "", "pb": ""}, {"pa": "pa", "pb": "pb"}),
    ],
)
def test_a_name_is_as_short_as_can_be(organisations: dict[str, str], names: dict[str, str]) -> None:
    assert shown_names(organisations) == names
