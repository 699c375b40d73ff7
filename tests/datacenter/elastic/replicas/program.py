"""The program of each rank of replica groups, killed or held where a test asks. ``python -m … JOB.toml``.

``KILL=GROUP:POSITION:STEP:POINT …``: that rank kills itself with SIGKILL at that point of that step, once. POINT is a
phase of the step, ``sum`` (the others are in the sum, and wait for it), ``summed`` (it has the mean, and the others may
have it too, but it has not voted), ``fetching`` (it has a part of a live group's state) or ``serving`` (it has sent a
part of its state); With the last two, STEP is the number of that transfer, 1 at the start. GROUP may be several, with
commas: the first of them to get there. ``GATE=GROUP:STEP:PHASE:FIFO …``: rank 0 of that group, or of those, waits in
that phase of that step until the fifo is opened for writing; ``returning`` in step 0 is where a group that was started
again asks to take part. Each rank appends its group, position and process to ``pids``, and at the end writes its state
to ``state-GROUP-POSITION.pt``, all in the folder ``FACTS``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import atoll.datacenter.train.__main__ as program
from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.elastic.replicas import healing, member
from atoll.datacenter.elastic.replicas.average import Averager, shard_of
from atoll.datacenter.elastic.replicas.link import Ticket
from atoll.datacenter.elastic.replicas.messages import Heal, Quorum
from atoll.datacenter.elastic.watch import Watch
from atoll.datacenter.train.trainer import Summary, Trainer

FACTS = Path(os.environ["FACTS"])
STARTED_AGAIN = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"


def kill_at(group: int, step: int, point: str) -> None:
    """Kill this process here if the test asks for it, and it has not happened yet."""
    position = os.environ["RANK"]
    for index, kill in enumerate(os.environ.get("KILL", "").split()):
        who, where, when, what = kill.split(":")
        if str(group) in who.split(",") and (where, what, when) == (position, point, str(step)):
            with suppress(FileExistsError):
                (FACTS / f"killed-{index}").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)


def gate(group: int, step: int, phase: str) -> None:
    """Wait here if the test asks for it."""
    for one in os.environ.get("GATE", "").split():
        who, when, where, fifo = one.split(":")
        if str(group) in who.split(",") and (when, where, os.environ["RANK"]) == (str(step), phase, "0"):
            with suppress(FileNotFoundError):  # it was opened before this rank was started again
                Path(fifo).read_text(encoding="utf-8")


def instrument(group: int) -> None:
    """Insert the points into the program."""
    fill, send, receive, send_all = healing._fill, healing._send, healing.receive_state, healing.send_state
    enter, sum_parts, sum_all, run = Watch.enter, Averager._sum, Averager.sum, Trainer.run
    steps: dict[str, int] = {}

    def entering(self: Watch, step: int, phase: str) -> None:
        enter(self, step, phase)
        kill_at(group, step, phase.replace(" ", "_"))
        gate(group, step, "returning" if STARTED_AGAIN and phase == "joining" else phase)

    def summing(self: Averager, sums: Sequence[Tensor]) -> None:
        kill_at(group, steps["step"], "sum")
        sum_parts(self, sums)

    def summed(self: Averager, quorum: Quorum, weights: Mapping[int, float]) -> list[Tensor]:
        steps["step"] = quorum.step + 1
        found = sum_all(self, quorum, weights)
        kill_at(group, quorum.step + 1, "summed")
        return found

    def filling(wire: Any, shard: Tensor) -> None:
        fill(wire, shard)
        kill_at(group, steps["heal"], "fetching")

    def receiving(state: Any, heal: Heal, *place: Any) -> None:
        steps["heal"] = heal.number
        receive(state, heal, *place)

    def sending(wire: Any, part: Tensor) -> None:
        send(wire, part)
        kill_at(group, steps["heal"], "serving")

    def sending_all(state: Any, heal: Heal, *place: Any) -> None:
        steps["heal"] = heal.number
        send_all(state, heal, *place)

    def running(self: Trainer, *place: Any, **named: Any) -> Summary:
        summary = run(self, *place, **named)
        state = self.state.model_tensors() | self.state.optimiser_tensors(make=False)
        shards = {name: shard_of(tensor).clone() for name, tensor in state.items()}
        torch.save(shards, FACTS / f"state-{group}-{os.environ['RANK']}.pt")
        return summary

    patch.object(healing, "_fill", filling).start()
    patch.object(healing, "_send", sending).start()
    patch.object(member, "receive_state", receiving).start()
    patch.object(member, "send_state", sending_all).start()
    Watch.enter, Averager._sum, Averager.sum, Trainer.run = entering, summing, summed, running  # type: ignore[method-assign]


def main() -> None:
    group = Ticket.of_environment().group
    with (FACTS / "pids").open("a", encoding="utf-8") as pids:
        pids.write(f"{group} {os.environ['RANK']} {os.getpid()}\n")
    instrument(group)
    program.main()


if __name__ == "__main__":
    assert len(sys.argv) == 2
    run_rank(main)
