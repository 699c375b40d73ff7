"""Policy of a silo."""

from __future__ import annotations

from pathlib import Path

from atoll.client import Policy
from atoll.client.silo import read_policy
from atoll.datacenter.errors import LayoutError

MAX_MODEL_BYTES = 1 << 50
"""Default limit of a policy; in fact the job bounds what a silo downloads, since the model must be the job's."""


def silo_policy(path: Path | None) -> Policy:
    """Read a policy that a silo can enforce; without a file, the default policy.

    Raises:
        PolicyError: naming file, key, value and what is allowed.
        LayoutError: if it asks for noise on each update: ranks send parts, and no rank has the whole update.
    """
    defaults = Policy(max_model_bytes=MAX_MODEL_BYTES)
    if path is None:
        return defaults
    policy = read_policy(path, defaults)
    if policy.local_privacy is not None:
        raise LayoutError(
            f"{path}: [local_privacy] adds noise to a whole update, but each rank of a silo sends a part; "
            "leave it out, and protect single sequences with [privacy] of the job"
        )
    return policy
