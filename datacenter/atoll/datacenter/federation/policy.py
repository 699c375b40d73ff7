"""A silo's own rules."""

from __future__ import annotations

from pathlib import Path

from atoll.client import Policy
from atoll.client.policy_file import read_policy
from atoll.datacenter.errors import LayoutError


def silo_policy(path: Path) -> Policy:
    """Read a policy that a silo can keep.

    Raises:
        PolicyError: naming file, key, value and what is allowed.
        LayoutError: if it asks for noise on each update: ranks send parts, and none has the whole to noise.
    """
    policy = read_policy(path)
    if policy.local_privacy is not None:
        raise LayoutError(
            f"{path}: [local_privacy] noises a whole update, and a silo sends it in parts, rank by rank; leave it out, "
            "and protect single sequences with [privacy] of the job"
        )
    return policy
