"""Participants that train a torch module.

::

    participant = TorchParticipant(
        module=net,
        loader=DataLoader(data, batch_size=32, shuffle=True),
        loss=torch.nn.functional.cross_entropy,
        optimiser=lambda parameters, settings: torch.optim.SGD(parameters, lr=settings.number("learning_rate", 0.1)),
    )

Every parameter is sent, under its name in ``named_parameters()``; tied parameters once, under their first name. For
floating buffers that are saved with the module (batch-norm's running statistics) ``buffers`` decides: "average"
(default) treats them like parameters; "local" leaves them out of the layout, so that each participant keeps its own
(FedBN, Li et al. 2021). Integer buffers (``num_batches_tracked``) are never sent.

PyTorch's generators are seeded from ``task.seed`` during a task and restored afterwards, so the order of a shuffling
loader, dropout and the loader's workers repeat with the run. Operators know this seed, so noise for privacy must come
from elsewhere (``atoll.client.opacus`` draws noise and samples from the operating system).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from atoll.client.errors import UsageError
from atoll.client.participant import Participant
from atoll.client.update import Evaluation, Update, difference
from atoll.formats import safetensors
from atoll.wire.layout import Dtype, Layout, TensorSpec

if TYPE_CHECKING:
    from atoll.client.model import Model
    from atoll.client.settings import Settings
    from atoll.client.task import Task

Buffers = Literal["average", "local"]
Loss = Callable[[Any, Any], torch.Tensor]
OptimiserFactory = Callable[[Iterable[torch.nn.Parameter], "Settings"], torch.optim.Optimizer]

_DTYPES = {
    torch.float32: Dtype.FLOAT32,
    torch.float64: Dtype.FLOAT64,
    torch.float16: Dtype.FLOAT16,
    torch.bfloat16: Dtype.BFLOAT16,
}


class TorchParticipant(Participant):
    """Trains a module on a loader's batches; one fresh optimiser per round.

    Settings: ``epochs`` (default 1), ``proximal_mu`` (FedProx), and those that the optimiser factory reads. Training
    stops between two batches when the deadline is near; the weight of the update is the number of examples seen divided
    by the number of epochs.

    Args:
        module: the model; its tensors must be those of the global model.
        loader: batches of (inputs, targets); for others override ``batch_loss`` and ``batch_size``.
        loss: mean loss of (outputs, targets).
        optimiser: makes the optimiser from parameters and the task's settings.
        evaluation: batches to evaluate on; None: the participant does not evaluate.
        buffers: "average" or "local", see the module.
        examples: the declared weight, if the loader's data set has no length.
        device: device to train on.

    Attributes:
        seeded: whether PyTorch is seeded from ``task.seed``; if set to False, its generators continue from their
            current state.
    """

    seeded = True

    def __init__(
        self,
        module: torch.nn.Module,
        loader: Iterable[Any],
        loss: Loss,
        optimiser: OptimiserFactory,
        *,
        evaluation: Iterable[Any] | None = None,
        buffers: Buffers = "average",
        examples: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.module = module.to(device)
        self.loader = loader
        self.loss = loss
        self.optimiser = optimiser
        self.evaluation = evaluation
        self.device = torch.device(device)
        self.examples = count_examples(loader) if examples is None else examples
        self._buffers: Buffers = buffers

    @property
    def can_evaluate(self) -> bool:
        """Whether there are batches to evaluate on."""
        return self.evaluation is not None

    def shared(self) -> Mapping[str, torch.Tensor]:
        """The module's tensors that belong to the global model."""
        return travelling(self.module, self._buffers)

    def fit(self, model: Model, task: Task) -> Update:
        """Load the global model and train; the update has views of the module's tensors."""
        with self._randomness(task), held(self.module, task):
            return self._fit(model, task)

    def _fit(self, model: Model, task: Task) -> Update:
        tensors = self.shared()
        load(tensors, model)
        epochs = task.settings.integer("epochs", 1)
        pull = proximal_pull(self.module, model, task.proximal_mu)
        optimiser = self.optimiser([p for p in self.module.parameters() if p.requires_grad], task.settings)
        self.module.train()
        seen, total_loss = 0, 0.0
        for batch in _until_stopped(self.loader, epochs, task):
            optimiser.zero_grad(set_to_none=True)
            loss = self.batch_loss(batch)
            torch.autograd.backward(loss)
            pull()
            optimiser.step()
            size = self.batch_size(batch)
            seen += size
            total_loss += float(loss.detach()) * size
        weight = min(seen // epochs or min(seen, 1), task.max_weight)
        metrics = {"loss": total_loss / seen} if seen else {}
        return Update(
            weights={name: to_array(tensor) for name, tensor in tensors.items()},
            weight=weight,
            metrics=metrics,
            partial=seen < epochs * self.examples,
        )

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        """Mean loss and metrics over the evaluation batches."""
        with self._randomness(task):
            return self._evaluate(model, task)

    def _evaluate(self, model: Model, task: Task) -> Evaluation:
        load(self.shared(), model)
        self.module.eval()
        sums: dict[str, float] = {}
        seen = 0
        with torch.no_grad():
            for batch in _until_stopped(self.evaluation or (), 1, task):
                size = self.batch_size(batch)
                seen += size
                for name, value in self.batch_metrics(batch).items():
                    sums[name] = sums.get(name, 0.0) + float(value) * size
        return Evaluation({name: value / seen for name, value in sums.items()} if seen else {}, seen)

    def _randomness(self, task: Task) -> AbstractContextManager[object]:
        return seeded(task.seed, self.device) if self.seeded else nullcontext()

    def batch_loss(self, batch: Any) -> torch.Tensor:
        """The mean loss of one batch, with its graph; override for batches that are not (inputs, targets)."""
        inputs, targets = batch
        return self.loss(self.module(inputs.to(self.device)), targets.to(self.device))

    def batch_metrics(self, batch: Any) -> dict[str, float]:
        """Means over one batch: the loss, and the accuracy for class targets; override for others."""
        inputs, targets = batch[0].to(self.device), batch[1].to(self.device)
        outputs = self.module(inputs)
        return {"loss": float(self.loss(outputs, targets)), **class_accuracy(outputs, targets)}

    def batch_size(self, batch: Any) -> int:
        """Number of examples in a batch: the length of its first part."""
        return len(batch[0])


@contextmanager
def held(module: torch.nn.Module, task: Task) -> Iterator[None]:
    """A context in which the parameters that the task freezes need no gradient; restored afterwards."""
    found = [p for name, p in module.named_parameters() if p.requires_grad and task.is_frozen(name)]
    for parameter in found:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in found:
            parameter.requires_grad_(True)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A context with PyTorch's generators, of the CPU and ``device``, seeded with ``seed``; restored afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def layout_of(module: torch.nn.Module, buffers: Buffers = "average", local: Sequence[str] = ()) -> Layout:
    """The layout of a module's tensors, without those that ``local`` names.

    Raises:
        UsageError: for parameters of unsupported element types, or as ``travelling``.
    """
    specs = []
    for name, tensor in travelling(module, buffers, local).items():
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise UsageError(f"parameter {name!r} is {tensor.dtype}; types that can be sent are {', '.join(Dtype)}")
        specs.append(TensorSpec(name, tuple(tensor.shape), dtype))
    return Layout(tuple(specs))


def save_initial(
    module: torch.nn.Module, path: str | Path, buffers: Buffers = "average", local: Sequence[str] = ()
) -> None:
    """Write the module's tensors as the safetensors file with which an operator submits a run.

    Args:
        module: the whole model.
        path: of the file.
        buffers: see ``TorchParticipant``.
        local: names of tensors that stay with participants, with ``*`` and ``?``; see ``atoll.client.torch_personal``.

    Raises:
        UsageError: as ``layout_of``.
    """
    layout = layout_of(module, buffers, local)
    arrays = (np.ascontiguousarray(to_array(tensor)) for tensor in travelling(module, buffers, local).values())
    safetensors.write(Path(path), layout, (array.reshape(-1).view(np.uint8).data for array in arrays))


def travelling(module: torch.nn.Module, buffers: Buffers, local: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """The module's tensors that are sent, by name; see the docstring of this Python module.

    Raises:
        UsageError: for another value of ``buffers``, or if a name of ``local`` matches no tensor, or they match all.
    """
    if buffers not in ("average", "local"):
        raise UsageError(f"buffers={buffers!r}; allowed are 'average' and 'local'")
    found: dict[str, torch.Tensor] = dict(module.named_parameters())
    if buffers == "average":
        saved = module.state_dict(keep_vars=True)
        floating = ((name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point())
        found.update((name, buffer) for name, buffer in floating if name in saved)
    return _without(found, local)


def _without(found: dict[str, torch.Tensor], local: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors that no pattern of ``local`` matches."""
    for pattern in local:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise UsageError(f"local: no tensor is named {pattern!r}; there are: {', '.join(found)}")
    shared = {name: tensor for name, tensor in found.items() if not any(fnmatchcase(name, one) for one in local)}
    if not shared:
        raise UsageError(f"local: {', '.join(local)} match every tensor: nothing would be trained together")
    return shared


def load(tensors: Mapping[str, torch.Tensor], model: Model) -> None:
    """Copy the global model into a module's tensors, one at a time.

    Raises:
        UsageError: if names, shapes or element types are not those of the global model.
    """
    check_match(tensors, model)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(as_tensor(model, name))


def as_tensor(model: Model, name: str) -> torch.Tensor:
    """A global tensor without a copy. It shares read-only memory: never write to it."""
    view = model[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        if model.spec(name).dtype is Dtype.BFLOAT16:
            return torch.from_numpy(view.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(view)


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as an array: a view if it is in host memory; bfloat16 as its bits (uint16)."""
    host = tensor.detach().cpu()
    if host.dtype == torch.bfloat16:
        return host.view(torch.int16).numpy().view(np.uint16)
    array: npt.NDArray[Any] = host.numpy()
    return array


def class_accuracy(outputs: Any, targets: Any) -> dict[str, float]:
    """The accuracy, if outputs are scores by class and targets are class numbers; otherwise empty."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return {}
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return {}
    return {"accuracy": float((outputs.argmax(dim=1) == targets).float().mean())}


def count_examples(loader: Iterable[Any]) -> int:
    """The length of a loader's data set.

    Raises:
        UsageError: if it has none.
    """
    data = getattr(loader, "dataset", loader)
    if not isinstance(data, Sized) or not hasattr(loader, "dataset"):
        raise UsageError("the loader's data set has no length: give TorchParticipant examples=...")
    return len(data)


def check_match(tensors: Mapping[str, torch.Tensor], model: Model) -> None:
    """Check that a module's tensors are those of the global model.

    Raises:
        UsageError: if names, shapes or element types differ.
    """
    missing = [name for name in tensors if name not in model]
    unknown = [name for name in model if name not in tensors]
    if missing or unknown:
        raise UsageError(f"the global model does not fit the module: it {difference(missing, unknown)}")
    for name, tensor in tensors.items():
        spec = model.spec(name)
        if tuple(tensor.shape) != spec.shape or _DTYPES.get(tensor.dtype) is not spec.dtype:
            raise UsageError(
                f"tensor {name!r} is {list(tensor.shape)} {tensor.dtype} in the module, {list(spec.shape)} "
                f"{spec.dtype.value} in the global model"
            )


def _until_stopped(batches: Iterable[Any], epochs: int, task: Task) -> Iterator[Any]:
    for _ in range(epochs):
        for batch in batches:
            if task.should_stop:
                return
            yield batch


def proximal_pull(module: torch.nn.Module, model: Model, mu: float) -> Callable[[], None]:
    """Adds FedProx's gradient mu * (w - w_global) to each parameter's (Li et al. 2020, eq. 2)."""
    if mu == 0.0:
        return lambda: None
    anchored = [(name, p) for name, p in module.named_parameters() if name in model]
    pairs = [(p, as_tensor(model, name).to(p.device)) for name, p in anchored if p.requires_grad]

    def pull() -> None:
        with torch.no_grad():
            for parameter, anchor in pairs:
                if parameter.grad is not None:
                    parameter.grad.add_(parameter - anchor, alpha=mu)

    return pull
