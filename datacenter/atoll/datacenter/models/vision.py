"""A small vision transformer (Dosovitskiy et al. 2021): patches of an image as tokens, one output for all of them.

It shows that the trainer is not limited to text. Image sizes are in ``[model.settings]``; ``vocab`` is the number of
classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.spec import TRANSFORMER_CUTS, Constant, Cut, ModelSpec, Normal

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection

IGNORED_LABEL = -100
_PLACE_STD = 0.5
_SETTINGS = {"image": 8, "patch": 2, "channels": 1}
"""Side of the square image, side of a patch, and channels: those of the handwritten digits."""
_CUTS: dict[str, Cut] = {
    **TRANSFORMER_CUTS,
    "patches": "embedding",
    "places": "embedding",
    "feed_forward.w1": "column",
    "feed_forward.w2": "row",
}


class Attention(nn.Module):
    """Softmax attention of every patch over every patch."""

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.head_dim = model.dim // model.heads
        self.wq, self.wv, self.wo = (nn.Linear(model.dim, model.dim) for _ in range(3))
        self.wk = nn.Linear(model.dim, model.dim, bias=False)  # softmax cancels a bias of the keys

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``[batch, patches, dim]`` to the same shape. With tensor parallelism the heads are those of this rank."""
        batch, patches, _ = hidden.shape
        query, key, value = (
            linear(hidden).view(batch, patches, -1, self.head_dim).transpose(1, 2)
            for linear in (self.wq, self.wk, self.wv)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        projected: Tensor = self.wo(mixed.reshape(batch, patches, -1))
        return projected


class FeedForward(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden)
        self.w2 = nn.Linear(hidden, dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``[..., dim]`` to the same shape."""
        mixed: Tensor = self.w2(functional.gelu(self.w1(hidden)))
        return mixed


class Block(nn.Module):
    """Attention and feed-forward part, each with a norm before it and a residual connection."""

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(model.dim, eps=model.norm_epsilon)
        self.attention = Attention(model)
        self.ffn_norm = nn.LayerNorm(model.dim, eps=model.norm_epsilon)
        self.feed_forward = FeedForward(model.dim, model.ffn_dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``[batch, patches, dim]`` to the same shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        fed: Tensor = hidden + self.feed_forward(self.ffn_norm(hidden))
        return fed


class Vision(nn.Module):
    """Maps images to logits. A pipeline stage is such a model with parts removed.

    Attributes:
        patches: projection of a patch's pixels into the residual stream; on the first stage, else None.
        places: position embedding of a patch; on the first stage, else None.
        blocks: ``Block`` modules by number in the whole model.
        norm: on the last stage, else None.
        output: on the last stage, else None.
    """

    def __init__(self, model: ModelSection, patch: int, pixels: int, count: int) -> None:
        super().__init__()
        self.patch, self.count = patch, count
        self.patches: nn.Linear | None = nn.Linear(pixels, model.dim, bias=False)
        self.places: nn.Embedding | None = nn.Embedding(count, model.dim)
        self.blocks = nn.ModuleDict({str(number): Block(model) for number in range(model.layers)})
        self.norm: nn.LayerNorm | None = nn.LayerNorm(model.dim, eps=model.norm_epsilon)
        self.output: nn.Linear | None = nn.Linear(model.dim, model.vocab, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Run the parts that this module has.

        Args:
            images: float ``[batch, channels, side, side]``, or hidden states ``[batch, patches, dim]`` where the
                embedding is missing.

        Returns:
            logits ``[batch, classes]``, or hidden states where the output is missing.
        """
        hidden = images
        if self.patches is not None and self.places is not None:
            cut = functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
            places = torch.arange(self.count, device=images.device).repeat(images.shape[0], 1)
            hidden = self.patches(cut) + self.places(places)  # one embedding per image, for sample-level privacy
        for block in self.blocks.values():
            hidden = block(hidden)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.output(hidden.sum(dim=1) / self.count) if self.output is not None else hidden


def vision_spec(model: ModelSection) -> ModelSpec:
    """Return the spec of ``[model]`` of kind ``vision``.

    Raises:
        LayoutError: if ``[model.settings]`` has other keys than ``image``, ``patch`` and ``channels``, or patches do
            not fill the image.
    """
    image, patch, channels = _sizes(model)

    def initial(name: str, shape: tuple[int, ...]) -> Normal | Constant:
        if len(shape) == 1:
            return Constant(0.0 if name.endswith("bias") else 1.0)
        return Normal(_PLACE_STD if name == "places.weight" else shape[1] ** -0.5)

    return ModelSpec(
        build=lambda: Vision(model, patch, channels * patch**2, (image // patch) ** 2),
        initial=initial,
        blocks="blocks",
        first=("patches", "places"),
        last=("norm", "output"),
        loss=image_loss,
        tensor=_CUTS,
        entries={"attention": 1, "feed_forward": 1},
    )


def _sizes(model: ModelSection) -> tuple[int, int, int]:
    found = {**_SETTINGS, **model.settings}
    if unknown := sorted(set(found) - set(_SETTINGS)):
        raise LayoutError(f"model.settings: {', '.join(unknown)}: a vision model has {', '.join(_SETTINGS)}")
    sizes = [size for size in found.values() if isinstance(size, int) and size >= 1]
    if len(sizes) < len(found) or sizes[0] % sizes[1]:
        raise LayoutError(f"model.settings: {found}: allowed are whole numbers from 1, and patch must divide image")
    image, patch, channels = sizes
    return image, patch, channels


def image_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of cross entropies in float32.

    Args:
        logits: ``[batch, classes]``.
        labels: int64 ``[batch]``; -100 does not count.
    """
    return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED_LABEL, reduction="sum")
