"""Curves for TensorBoard, which is an optional library."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from atoll.datacenter.errors import MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.metrics.record import Evaluation, RunFacts, StepRecord

_QUEUE = 100
"""Records that may wait for the writing thread; beyond that ``step`` waits too."""
_FLUSH_S = 10


class TensorBoard:
    """Writes event files into a folder, in a thread of the library.

    Raises:
        MissingExtraError: if tensorboard is not installed.
        OSError: if the folder cannot be created.
    """

    def __init__(self, folder: Path, facts: RunFacts) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # optional
        except ImportError as error:
            raise MissingExtraError("tensorboard", "tensorboard", "metrics.tensorboard") from error
        folder.mkdir(parents=True, exist_ok=True)
        self._facts = facts
        self._writer = SummaryWriter(str(folder), max_queue=_QUEUE, flush_secs=_FLUSH_S)
        self._writer.add_text("facts", "\n".join(f"- {name}: {value}" for name, value in asdict(facts).items()))

    def step(self, record: StepRecord) -> None:
        """Add a point to each curve."""
        for tag, value in curves(record, self._facts).items():
            self._writer.add_scalar(tag, value, record.step)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Add a point to the curves of held-out data."""
        self._writer.add_scalar("held_out/loss", evaluation.loss, evaluation.step)
        self._writer.add_scalar("held_out/perplexity", evaluation.perplexity, evaluation.step)

    def close(self) -> None:
        """Write what is pending."""
        self._writer.close()


def curves(record: StepRecord, facts: RunFacts) -> dict[str, float]:
    """Return a record as named numbers, without unknown values."""
    found = {
        "train/loss": record.loss,
        "train/lr": record.lr,
        "train/grad_norm": record.grad_norm,
        "train/loss_scale": record.loss_scale,
        "train/expert_load": record.expert_load,
        "train/epsilon": record.epsilon,
        "speed/tokens_per_s": record.tokens_per_s,
        "speed/step_s": record.step_s,
        "speed/mfu": facts.mfu(record.tokens_per_s),
        "speed/data_wait_share": record.data_wait_share,
        "speed/bubble_share": record.bubble_share,
        "speed/communication_share": record.communication_share,
        "speed/exposed_share": record.exposed_share,
        "replicas/in_step": None if record.replicas is None else float(len(record.replicas)),
        "replicas/share": record.replica_share,
        "replicas/lost": record.replicas_lost,
        "replicas/healed": record.replicas_healed,
        "replicas/speculated": record.replicas_speculated,
        "memory/peak_bytes": float(record.peak_memory_bytes),
    }
    return {tag: value for tag, value in found.items() if value is not None}
