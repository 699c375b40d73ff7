import re
from collections.abc import Callable

import pytest

from atoll.server.identity import check_participant_id, new_participant_id, new_run_id, new_token_id


@pytest.mark.parametrize(("make", "letter"), [(new_participant_id, "p"), (new_run_id, "r"), (new_token_id, "t")])
def test_ids_have_their_form_and_differ(make: Callable[[], str], letter: str) -> None:
    made = {make() for _ in range(200)}
    assert len(made) == 200
    assert all(re.fullmatch(f"{letter}[a-z2-7]{{12}}", text) for text in made)


def test_a_new_participant_id_is_valid() -> None:
    made = new_participant_id()
    assert check_participant_id(made) == made
