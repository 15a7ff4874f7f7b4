"""What timm's tools ask of an image model: features, intermediate layers, another head, groups of parameters."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor, nn

from formerlab.layers.depth.identity import Mixer

if TYPE_CHECKING:
    from formerlab.models.vision import VisionTransformer

Images = Float[Tensor, "batch channels rows columns"]
Tokens = Float[Tensor, "batch time width"]
Pooled = Float[Tensor, "batch features"]

POOLS = {"token": "token", "avg": "average", "average": "average", "": ""}
"""timm's names of what the head reads; with an empty one it reads every token."""


class VisionFeatures:
    """The part of timm's model interface that a Vision Transformer has; names and arguments are timm's."""

    spec: "VisionTransformer"
    blocks: nn.ModuleList
    mixer: Mixer
    final_norm: nn.Module
    head: nn.Module
    pool: str
    num_classes: int

    def streams(self, images: Images) -> Iterator[Tokens]:
        """Yield the tokens after each block."""
        raise NotImplementedError

    @property
    def embed_dim(self) -> int:
        """Channels of the tokens."""
        return self.spec.width

    num_features = head_hidden_size = embed_dim

    @property
    def global_pool(self) -> str:
        """What the head reads: token, avg, or nothing."""
        return "avg" if self.pool == "average" else self.pool

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Channels, reduction and place of the features after each block."""
        place = {"num_chs": self.spec.width, "reduction": self.spec.patch}
        return [place | {"module": f"blocks.{index}"} for index in range(self.spec.layers)]

    def forward_features(self, images: Images) -> Tokens:
        """Return class token and patch tokens after the final norm."""
        *_, last = self.streams(images)
        normed: Tensor = self.final_norm(last)
        return normed

    def forward_head(self, tokens: Tokens, pre_logits: bool = False) -> Tensor:
        """Return the logits, or with `pre_logits` what the head reads."""
        pooled = tokens
        if self.pool:
            pooled = tokens[:, 0] if self.pool == "token" else tokens[:, 1:].mean(dim=1)
        logits: Tensor = pooled if pre_logits else self.head(pooled)
        return logits

    def forward_intermediates(
        self,
        x: Images,
        indices: int | list[int] | tuple[int, ...] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return the final tokens and the features after chosen blocks: the last n, all, or those named (from 0).

        Features are maps `batch width rows columns` (output_fmt NCHW) or tokens `batch patches width` (NLC), without
        the class token, which `return_prefix_tokens` adds beside each.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt={output_fmt!r}; it is NCHW or NLC")
        wanted = self._indices(indices)
        kept, last = [], None
        for index, last in enumerate(self.streams(x)):
            if index in wanted:
                kept.append(self.final_norm(last) if norm else last)
            if stop_early and index == max(wanted):
                break
        features = [self._shaped(tokens[:, 1:], output_fmt) for tokens in kept]
        found = (
            list(zip(features, (tokens[:, :1] for tokens in kept), strict=True)) if return_prefix_tokens else features
        )
        return found if intermediates_only else (self.final_norm(last), found)

    def get_intermediate_layers(
        self,
        x: Images,
        n: int | list[int] | tuple[int, ...] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> Any:
        """Return the features after the last n blocks, or those named."""
        form = "NCHW" if reshape else "NLC"
        return self.forward_intermediates(x, n, return_prefix_tokens, norm, output_fmt=form, intermediates_only=True)

    def prune_intermediate_layers(
        self, indices: int | list[int] | tuple[int, ...] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what features after these blocks do not need, and return their indices."""
        wanted = self._indices(indices)
        self.blocks = self.blocks[: max(wanted) + 1]
        if prune_norm:
            self.final_norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return wanted

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a fresh one for another number of classes; 0 removes it."""
        if global_pool is not None:
            if global_pool not in POOLS:
                raise ValueError(f"global_pool={global_pool!r}; it is one of {', '.join(map(repr, POOLS))}")
            self.pool = POOLS[global_pool]
        self.num_classes = num_classes
        self.head = nn.Identity()
        if num_classes:
            weight = next(self.blocks.parameters())
            self.head = nn.Linear(self.spec.width, num_classes, device=weight.device, dtype=weight.dtype)
            nn.init.trunc_normal_(self.head.weight, std=self.spec.std)
            nn.init.zeros_(self.head.bias)

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that weight decay leaves alone although they are matrices."""
        return {"class_token.token", "position.rows"} | {f"mixer.{name}" for name in self.mixer.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns that sort parameters by depth, for a learning rate that decays towards the stem."""
        stem = r"^(?:patch_embed|class_token|position)"
        return {"stem": stem, "blocks": [(r"^blocks\.(\d+)", None), (r"^(?:mixer|final_norm)", (99999,))]}

    def _indices(self, indices: int | list[int] | tuple[int, ...] | None) -> list[int]:
        count = len(self.blocks)
        if isinstance(indices, int):
            indices = list(range(count - indices, count))
        wanted = list(range(count)) if indices is None else [index % count for index in indices]
        if not wanted or min(wanted) < 0:
            raise ValueError(f"no blocks {indices} in a model of {count}")
        return wanted

    def _shaped(self, patches: Tokens, form: str) -> Tensor:
        if form == "NLC":
            return patches
        rows = self.spec.image // self.spec.patch
        return patches.transpose(1, 2).reshape(len(patches), -1, rows, rows)
