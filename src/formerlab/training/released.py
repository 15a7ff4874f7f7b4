"""ReleasedRun: a released model in the place of a trained one, with what it is measured on."""

from typing import Literal

from formerlab.released import Dtype, ReleasedModel, Sizes
from formerlab.spec import Count, Size
from formerlab.training.any_run import AnyRun, Name


class Pretrained(Sizes):
    """A released model as plans, records and readers of rows know it."""

    kind: Literal["released"] = "released"
    name: Name
    """Its name at the scale."""
    source: ReleasedModel
    """Where it lies, and the type that its weights are given."""


class ReleasedRun(AnyRun):
    """A run that trains nothing: a released model, whose loss is measured on held-out text of its own tokens."""

    model: Pretrained
    """What the plan knows of the model, whose tokenizer is that of the data set."""
    released: Name
    """The model, by its name below `released` of the scale."""
    dtype: Dtype | None = None
    """Type of its weights, where it differs from what the scale says of the model."""
    context: Size = 512
    """Tokens predicted in a window of the held-out text."""
    windows: Count = 128
    """Windows at most, evenly spread over it."""

    @property
    def tokens(self) -> int:
        """Tokens that loading predicts on the held-out text, at most."""
        return self.windows * self.context

    @property
    def forward_flops(self) -> int:
        """FLOPs of a token, forward, in a window."""
        return self.model.flops(self.context) // self.context

    @property
    def measured_in(self) -> str:
        """Type of the products: that of the weights."""
        return "bfloat16" if self.model.source.dtype in ("float16", "bfloat16") else "float32"
