"""``task.seed``: the seed of a participant's random numbers in one round, the same in a deployment and a simulation.

It is no secret: server, operator and participant know it, and with a small job seed others can find it by trying. Noise
for privacy, secret draws and keys must never come from it.
"""

from __future__ import annotations

import struct

from blake3 import blake3

SEED_BITS = 63
"""Bits of a job's seed and of a task's seed, so that both fit a signed 64-bit integer."""
_CONTEXT = "atoll 2026 task seed: job seed, round, participant"


def task_seed(job_seed: int, round_number: int, participant: str) -> int:
    """The seed of a task: 63 bits of BLAKE3 over the run's seed, the round (from 0) and the participant's id.

    The run's id is not part of it, so that a run can be repeated; nor is the attempt, so that a participant that is
    asked again for a round does the same work. A participant cannot compute the seed of another from its own.

    Args:
        job_seed: ``[job] seed``, or what the server drew instead; 0 to 2^63 - 1.
        round_number: 0 to 2^32 - 1; evaluations count too.
        participant: its id.

    Raises:
        ValueError: for a job seed or a round out of range.
    """
    if not 0 <= job_seed < 2**SEED_BITS or not 0 <= round_number < 2**32:
        raise ValueError(f"job seed {job_seed}, round {round_number}: allowed are 0 to 2^63 - 1 and 0 to 2^32 - 1")
    named = struct.pack("<QI", job_seed, round_number) + participant.encode()
    digest = blake3(named, derive_key_context=_CONTEXT).digest(8)
    return int.from_bytes(digest, "little") >> 1
