"""Inner steps of a round do not wait for the device, and give the same metrics and weights as with waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from atoll.datacenter.federation.current_round import CurrentRound
from atoll.datacenter.federation.exchange import Exchange
from atoll.datacenter.federation.orders import Orders, open_store
from atoll.datacenter.federation.residuals import Residuals
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import Trainer, open_trainer
from tests.datacenter.federation.test_orders import order
from tests.datacenter.ranks import run_ranks
from tests.datacenter.train.test_step import STEADY, noted
from tests.datacenter.training import named_whole
from tests.patience import WAIT_S

STEPS = 7
ORDER = replace(order(1), inner_steps=STEPS)


@contextmanager
def opened(folder: str) -> Iterator[tuple[Trainer, Exchange]]:
    job = SiloJob.model_validate(STEADY)
    with join_world(WAIT_S) as world, open_trainer(job, Path(folder), world, Unwatched(), console=False) as trainer:
        orders = Orders(world, open_store("federation"), lambda: False)
        residuals = Residuals(None, world.rank, Path(folder))
        yield trainer, Exchange(trainer, orders, CurrentRound(), residuals, Path(folder))


def waits(folder: str) -> list[str]:
    events: list[str] = []
    with opened(folder) as (_, exchange), noted(events):
        exchange.train(ORDER, None, 0.0)
    return events


def test_a_step_is_waited_for_only_after_the_next_one_was_queued_and_the_last_one_at_the_end(tmp_path: Path) -> None:
    (events,) = run_ranks(waits, 1, str(tmp_path))
    assert events == ["queued", *(["queued", "wait"] * (STEPS - 1)), "wait"]


def trained(folder: str, *, at_once: bool) -> dict[str, Any]:
    """The loss of a round, its tokens, and the digest of the weights after it."""
    with opened(folder) as (trainer, exchange):
        if at_once:
            results = [trainer.advance() for _ in range(STEPS)]
            losses = tokens = 0.0
            for one in results:
                losses, tokens = losses + one.loss * one.tokens, tokens + one.tokens
            loss = losses / tokens
        else:
            found = exchange.train(ORDER, None, 0.0)
            loss, tokens = found.metrics["loss"], found.tokens
        digest = sha256()
        for name, value in named_whole(trainer.step.passes.parts).items():
            digest.update(name.encode() + value.numpy().tobytes())
        return {"loss": loss, "tokens": tokens, "state": trainer.state.tokens, "digest": digest.hexdigest()}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.every_case), 2])
def test_loss_and_weights_are_those_of_waiting_to_the_bit(tmp_path: Path, ranks: int) -> None:
    queued, waited = (run_ranks(partial(trained, at_once=at_once), ranks, str(tmp_path)) for at_once in (False, True))
    assert queued == waited


def halted(folder: str, after: int) -> int:
    """Number of steps of a round that rank 0 halts after this many."""
    with opened(folder) as (trainer, exchange):
        halt = exchange._orders.halt
        if trainer.world.is_first:
            queue = trainer.queue

            def queued() -> Any:
                if trainer.state.step == after:
                    halt(ORDER, trainer.state.step + 2)
                return queue()

            trainer.queue = queued  # type: ignore[method-assign]  # rank 0 alone knows how much time is left
        return exchange.train(ORDER, None, 0.0).steps


@pytest.mark.parametrize("after", [pytest.param(0, marks=pytest.mark.every_case), 3])
def test_every_rank_ends_with_the_step_that_rank_0_names(tmp_path: Path, after: int) -> None:
    assert run_ranks(halted, 2, str(tmp_path), after) == [after + 2] * 2
