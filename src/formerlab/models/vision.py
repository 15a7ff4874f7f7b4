"""The Vision Transformer, with the blocks of the decoder and patches as tokens."""

import functools
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.block import Block, activation_elements
from formerlab.layers.depth.identity import Identity, Stream
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.initialization import seeded
from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp
from formerlab.layers.norm import LayerNorm, Norm
from formerlab.layers.position import Learned, Position, check_rotation
from formerlab.layers.projection import FeedForward, Projection
from formerlab.layers.shapes import Heads, KeyHeads
from formerlab.spec import Layers, Size, Spec, Std

Images = Float[Tensor, "batch channels rows columns"]
Tokens = Float[Tensor, "batch time width"]
POOLS = {"token": "token", "avg": "average", "average": "average", "": ""}
"""Pooling by its name in timm or in the spec; with an empty string, the head is applied to every token."""


class VisionTransformer(Spec):
    """Patches and a class token, pre-norm blocks, final norm, linear head (arXiv:2010.11929, eq. 1).

    Tokenformer's vision models (arXiv:2410.23168, Table 9) have projection = feedforward = pattention, norms without
    parameters in the blocks, and a final norm with parameters.
    """

    kind: Literal["vision_transformer"] = "vision_transformer"
    image: Size = 224
    """Side of the square images in pixels; a plan sets it from the data."""
    channels: Size = 3
    """Colour channels of the images; a plan sets it from the data."""
    classes: Size = 1000
    """Number of classes; a plan sets it from the data."""
    patch: Size = 16
    """Side of a square patch in pixels; divides `image`."""
    layers: Layers = 12
    """Number of blocks."""
    width: Size = 768
    """Channels of the residual stream (d)."""
    heads: Size = 12
    """Number of attention heads; divides `width`."""
    pool: Literal["token", "average"] = "token"
    """Input of the head: the class token, or the mean of the patch tokens. Both settings have a class token."""
    position: Position = Learned()
    """Position encoding of the class token and the patches, row by row from the top left."""
    norm: Norm = LayerNorm(eps=1e-6)
    """Norm before attention and feed-forward."""
    final_norm: Norm = LayerNorm(eps=1e-6)
    """Norm before the head."""
    projection: Projection = Linear(bias=True)
    """Query, key, value and output projections of attention."""
    feedforward: FeedForward = Mlp(bias=True)
    """Feed-forward network."""
    depth: DepthMixer = Identity()
    """Depth mixer."""
    drop_path: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability that an image skips a residual branch. It increases linearly from 0 in the first block to `drop_path`
    in the last block (stochastic depth, arXiv:1603.09382, section 3); a model of one block drops nothing."""
    std: Std = 0.02
    """Standard deviation of the initial class token and head. The standard deviation of the patch projection is
    1/sqrt(values in a patch)."""

    @model_validator(mode="after")
    def _check(self) -> "VisionTransformer":
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        if self.image % self.patch:
            raise ValueError(f"patch={self.patch} does not divide image={self.image}")
        check_rotation(self.position, self.width, self.heads)
        return self

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2

    @property
    def context(self) -> int:
        """Number of tokens of an image."""
        return self.patches + 1

    def build(self, seed: int = 0) -> "VisionTransformerModel":
        """Return the model with initial values from the seed."""
        return seeded(lambda: VisionTransformerModel(self), seed)

    def params(self, *, embedding: bool = True) -> int:
        """Return the number of parameters, with or without patch projection, class token, positions and head."""
        block = 4 * self.projection.params(self.width, self.width) + self.feedforward.params(self.width, self.width)
        count = self.layers * (block + 2 * self.norm.params(self.width)) + self.final_norm.params(self.width)
        count += self.depth.params(self.layers, self.width)
        if embedding:
            count += (self.channels * self.patch**2 + 2) * self.width  # patch projection with its bias, class token
            count += self.position.params(self.context, self.width) + (self.width + 1) * self.classes
        return count

    def flops(self) -> int:
        """Return the FLOPs of matrix products and attention in the forward pass of one image (2 per multiply-add)."""
        block = 4 * self.projection.flops(self.width, self.width) + self.feedforward.flops(self.width, self.width)
        flops_per_token = self.layers * block + self.depth.matmul_flops(self.layers, self.width)
        patch_flops = 2 * self.patches * self.channels * self.patch**2 * self.width
        attention = 4 * self.layers * self.width * self.context**2
        return self.context * flops_per_token + attention + patch_flops + 2 * self.width * self.classes

    def activation_elements(self) -> int:
        """Estimate the elements that all blocks and the logits save per image for the backward pass."""
        block = activation_elements(self.width, self.projection, self.feedforward, self.depth)
        return self.context * self.layers * block + 2 * self.classes


def full_attention(layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
    """softmax(q k^T / sqrt(d_head)) v without a mask (arXiv:1706.03762, eq. 1)."""
    return F.scaled_dot_product_attention(q, k, v)


class DropPath(nn.Module):
    """Drop a residual branch of each image with probability `rate`; otherwise multiply it by 1/(1 - rate)
    (arXiv:1603.09382, section 3).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, update: Stream) -> Stream:
        if not self.training:
            return update
        mask = update.new_empty(len(update), 1, 1).bernoulli_(1 - self.rate)
        return update * (mask / (1 - self.rate))


class PatchEmbedding(nn.Conv2d):
    """The linear projection of patches, as a convolution with stride equal to the kernel size."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, 0.0, self.weight[0].numel() ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, images: Images) -> Stream:
        """Return one token per patch, row by row from the top left."""
        return super().forward(images).flatten(2).transpose(1, 2)


class ClassToken(nn.Module):
    """A learned token before the patches (arXiv:2010.11929, eq. 1)."""

    def __init__(self, width: int, std: float) -> None:
        super().__init__()
        self.std = std
        self.token = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.token, 0.0, self.std)

    def forward(self, patches: Float[Tensor, "batch patches width"]) -> Stream:
        return torch.cat((self.token.expand(len(patches), 1, -1), patches), dim=1)


class VisionTransformerModel(nn.Module):
    """The module of `VisionTransformer`, with the methods that timm's tools call."""

    def __init__(self, spec: VisionTransformer) -> None:
        super().__init__()
        self.spec = spec
        width, layers = spec.width, spec.layers
        self.patch_embed = PatchEmbedding(spec.channels, width, spec.patch, stride=spec.patch)
        self.class_token = ClassToken(width, spec.std)
        self.position = spec.position.build(spec.context, width, width // spec.heads)
        rates = [spec.drop_path * index / max(1, layers - 1) for index in range(layers)]
        self.blocks = nn.ModuleList(Block(spec, DropPath(rate) if rate else nn.Identity()) for rate in rates)
        self.mixer = spec.depth.build(layers, width)
        self.final_norm = spec.final_norm.build(width)
        self.head: nn.Module = Linear(bias=True, std=spec.std).build(width, spec.classes)
        self.pool: str = spec.pool
        self.num_classes, self.num_features = spec.classes, width

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Images) -> Tokens:
        """Return class token and patch tokens after the final norm; raise ValueError for images of another shape."""
        shape = (self.spec.channels, self.spec.image, self.spec.image)
        if images.shape[1:] != shape:
            raise ValueError(f"images have shape {tuple(images.shape[1:])}, but the model needs {shape}; resize them")
        x = self.position.embed(self.class_token(self.patch_embed(images)), 0)
        x, history = self.mixer.begin(x)
        add = functools.partial(self.mixer.add, history=history)
        for index, block in enumerate(self.blocks):
            x = self.mixer.mix(index + 1, block(x, self.position, full_attention, index, 0, add), history)
        normed: Tensor = self.final_norm(x)
        return normed

    def forward_head(self, tokens: Tokens, pre_logits: bool = False) -> Tensor:
        """Return the logits (batch, classes), or with `pre_logits` the input of the head (batch, width).

        With an empty pool, the result has one row per token: (batch, tokens, ...).
        """
        pooled = tokens
        if self.pool:
            pooled = tokens[:, 0] if self.pool == "token" else tokens[:, 1:].mean(dim=1)
        logits: Tensor = pooled if pre_logits else self.head(pooled)
        return logits

    @property
    def global_pool(self) -> str:
        """Name of the pooling in timm: token, avg, or an empty string."""
        return "avg" if self.pool == "average" else self.pool

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new head for `num_classes` classes, or remove it if `num_classes` is 0.

        Keep the pooling if `global_pool` is None. Raises KeyError for an unknown pooling.
        """
        self.pool = self.pool if global_pool is None else POOLS[global_pool]
        self.num_classes = num_classes
        self.head = nn.Identity()
        if num_classes:
            weight = next(self.blocks.parameters())
            self.head = nn.Linear(self.spec.width, num_classes, device=weight.device, dtype=weight.dtype)
            nn.init.trunc_normal_(self.head.weight, std=self.spec.std)
            nn.init.zeros_(self.head.bias)

    def get_classifier(self) -> nn.Module:
        return self.head

    def no_weight_decay(self) -> set[str]:
        return {"class_token.token", "position.rows"} | {f"mixer.{name}" for name in self.mixer.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns that group parameters by depth, for layer-wise learning-rate decay."""
        stem = r"^(?:patch_embed|class_token|position)"
        return {"stem": stem, "blocks": [(r"^blocks\.(\d+)", None), (r"^(?:mixer|final_norm)", (99999,))]}
