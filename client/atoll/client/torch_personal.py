"""Torch participants that share a part of their model and keep the rest.

The rest may be a head of their own (FedPer, Arivazhagan et al. 2019, arXiv:1912.00818), or normalisation layers (FedBN,
Li et al. 2021)::

    participant = PersonalTorchParticipant(net, loader, loss, optimiser, local=("head.*",))
    save_initial(net, "initial.safetensors", local=("head.*",))  # the operator's: without these tensors

The global model lacks the tensors that ``local`` names. They are neither sent nor received, and no sum, norm, noise or
exported model contains them. ``fit`` trains them together with the others and keeps them in the participant's state
directory; ``evaluate`` measures the shared part together with the participant's own tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.client.errors import UsageError
from atoll.client.torch import Loss, OptimiserFactory, TorchParticipant, to_array, travelling
from atoll.formats.arrays import load, save
from atoll.wire.errors import WireError

if TYPE_CHECKING:
    from atoll.client.model import Model
    from atoll.client.task import Task
    from atoll.client.update import Evaluation, Update

log = logging.getLogger(__name__)

FILE = "personal.safetensors"
"""Name of the file in the state directory."""


class PersonalTorchParticipant(TorchParticipant):
    """A ``TorchParticipant`` that keeps tensors to itself; see the module.

    These tensors have the values of the last ``fit``, even if its update came too late to count, and also after a
    restart. Before the first ``fit`` they are the module's own. Values of a ``fit`` that fails or diverges are not
    kept: the next one starts from the values kept before.

    Args:
        module: the whole model.
        loader: see ``TorchParticipant``.
        loss: see ``TorchParticipant``.
        optimiser: see ``TorchParticipant``.
        local: names of tensors that stay, with ``*`` and ``?``; buffers such as ``norm.running_mean`` too.
        evaluation: see ``TorchParticipant``.
        examples: see ``TorchParticipant``.
        device: see ``TorchParticipant``.

    Raises:
        UsageError: if a name matches no tensor of the module, or all of them.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loader: Iterable[Any],
        loss: Loss,
        optimiser: OptimiserFactory,
        *,
        local: Sequence[str],
        evaluation: Iterable[Any] | None = None,
        examples: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(module, loader, loss, optimiser, evaluation=evaluation, examples=examples, device=device)
        self._local = tuple(local)
        self._file: Path | None = None
        self.shared()  # its names are checked here rather than in the first round

    def prepare(self, state: Path) -> None:
        """Name the file; see ``Participant``."""
        self._file = state / FILE

    def shared(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the global model."""
        return travelling(self.module, self._buffers, self._local)

    def personal(self) -> dict[str, torch.Tensor]:
        """The local tensors."""
        shared = self.shared()
        return {name: tensor for name, tensor in travelling(self.module, "average").items() if name not in shared}

    def fit(self, model: Model, task: Task) -> Update:
        """Train all tensors; send the shared ones, and keep the others.

        Raises:
            UsageError: if the kept file belongs to another module.
        """
        if self._file is not None and not self._file.exists():
            self._keep(self._file)  # a failed fit must not pass its tensors on to the next one
        self._restore()
        update = super().fit(model, task)
        if self._file is not None:
            self._keep_finite(self._file)
        return update

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        """Measure the global model with the participant's own tensors. Raises as ``fit``."""
        self._restore()
        return super().evaluate(model, task)

    def _keep(self, file: Path) -> None:
        """Write the local tensors."""
        save(file, {name: to_array(tensor) for name, tensor in self.personal().items()})

    def _keep_finite(self, file: Path) -> None:
        """Write the local tensors, unless they diverged: an error would reveal data under local privacy."""
        diverged = [name for name, tensor in self.personal().items() if not bool(torch.isfinite(tensor).all())]
        if diverged:
            log.warning("local tensor %r is not finite after training: what was kept before stays", diverged[0])
        else:
            self._keep(file)

    def _restore(self) -> None:
        """Load what ``fit`` kept."""
        if self._file is None or not self._file.exists():
            return
        try:
            kept = load(self._file)
        except (OSError, WireError) as error:
            raise UsageError(f"{self._file} cannot be read: {error}; remove it to begin anew") from error
        wanted = self.personal()
        if _forms(kept) != _forms({name: to_array(tensor) for name, tensor in wanted.items()}):
            raise UsageError(
                f"{self._file} has tensors {', '.join(kept) or 'none'} of another module, other element types or other "
                "local names; remove it to begin anew"
            )
        with torch.no_grad():
            for name, tensor in wanted.items():
                tensor.copy_(_as_tensor(kept[name], tensor.dtype))


def _forms(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and element type by name."""
    return {name: (array.shape, array.dtype.name) for name, array in arrays.items()}


def _as_tensor(found: Any, dtype: torch.dtype) -> torch.Tensor:
    """An array from a file; bfloat16 is stored as its bits."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(found.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(found.copy())
