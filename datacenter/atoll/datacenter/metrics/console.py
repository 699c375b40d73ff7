"""Progress for people: one line for each record, and a bar on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from atoll.text.figures import bound

if TYPE_CHECKING:
    from atoll.datacenter.metrics.record import Evaluation, RunFacts, StepRecord

_PIPE_WIDTH = 400
"""Width of lines where the output is not a terminal: nothing is cut."""


class ConsoleLines:
    """Prints each record as a line on standard error, above a bar if that is a terminal."""

    def __init__(self, facts: RunFacts, console: Console | None = None) -> None:
        self._facts = facts
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = _PIPE_WIDTH
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._progress.add_task(facts.job, total=facts.total_steps)
        self._progress.start()

    def step(self, record: StepRecord) -> None:
        """Print a record."""
        self._progress.update(self._task, completed=record.step)
        self._console.print(line(record, self._facts), markup=False)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Print an evaluation."""
        self._console.print(evaluation_line(evaluation, self._facts), markup=False)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def line(record: StepRecord, facts: RunFacts) -> str:
    """Format a record as one line, without unknown values."""
    mfu = facts.mfu(record.tokens_per_s)
    parts = [
        _place(record.step, facts),
        f"loss {record.loss:.4f}",
        f"lr {record.lr:.3g}",
        "" if record.grad_norm is None else f"gradient {record.grad_norm:.3g}",
        f"{record.tokens_per_s:,.0f} tokens/s",
        "" if mfu is None else f"MFU {mfu:.1%}",
        f"memory {size(record.peak_memory_bytes)}",
        f"data wait {record.data_wait_share:.1%}",
        "" if record.bubble_share is None else f"bubble {record.bubble_share:.1%}",
        "" if record.communication_share is None else f"communication {record.communication_share:.1%} (traced)",
        "" if record.expert_load is None else f"busiest expert {record.expert_load:.2f}x",
        "" if record.epsilon is None else f"epsilon {bound(record.epsilon, 3)}",
        "" if record.replicas is None else f"replicas {len(record.replicas)}",
        "" if record.loss_scale is None else f"loss scale {record.loss_scale:g}",
    ]
    return "  ".join(part for part in parts if part)


def evaluation_line(evaluation: Evaluation, facts: RunFacts) -> str:
    """Format an evaluation as one line."""
    return (
        f"{_place(evaluation.step, facts)}  held-out loss {evaluation.loss:.4f}  perplexity {evaluation.perplexity:.4g}"
        f"  ({evaluation.tokens:,} tokens in {evaluation.seconds:.1f} s)"
    )


def _place(step: int, facts: RunFacts) -> str:
    of = f"/{facts.total_steps}" if step <= facts.total_steps else ""  # a federation may ask for more
    return f"step {step:>{len(str(facts.total_steps))}}{of}"


def size(count: float) -> str:
    """Format bytes with a decimal unit: ``3.2 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
