from __future__ import annotations

import pytest

from atoll.simulation.errors import SetupError
from atoll.simulation.population import Population


@pytest.mark.parametrize("name", ["", "../../x", "a/b", ".hidden", "a" * 129])
def test_names_that_would_leave_the_run_folder_are_refused(name: str) -> None:
    with pytest.raises(SetupError, match="is not a name"):
        Population(["hospital-1", name])
