"""`AnyRun`, the base of all runs, and `ReleasedRun`, which evaluates a released model."""

from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from formerlab.released import Dtype, ReleasedModel, Sizes
from formerlab.spec import Count, Seed, Size, Spec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")]


class AnyRun(Spec):
    """A run of a study on a data set."""

    study: Name
    """Name of the study."""
    name: Name
    """Name of the run within its study."""
    seed: Seed = 0
    """Seed of initial values, batches and dropout; always 0 for a released model."""
    data: Name = "text"
    """Name of a data set of the scale."""
    model: Any
    """The model."""

    @property
    def id(self) -> str:
        """The id of the run, which is also its folder."""
        return f"{self.study}/{self.name}/seed{self.seed}"

    @property
    def tokens(self) -> int:
        """Number of predicted tokens."""
        raise NotImplementedError

    @property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass per token."""
        raise NotImplementedError

    @property
    def measuring_precision(self) -> str:
        """Precision of matrix products in the measuring stages (bfloat16 for released models in half precision)."""
        return "float32"


class Pretrained(Sizes):
    """A released model in plans and records."""

    kind: Literal["released"] = "released"
    name: Name
    """Name of the model in the scale."""
    source: ReleasedModel
    """Files of the model, and the dtype of its weights in memory."""


class ReleasedRun(AnyRun):
    """A run that evaluates a released model on held-out text, tokenized by the model's tokenizer."""

    model: Pretrained
    """The model."""
    released: Name
    """Key of the model below `released` in the scale."""
    dtype: Dtype | None = None
    """Dtype of the weights. The default is the setting of the scale for this model."""
    context: Size = 512
    """Number of predicted tokens per window of the held-out text."""
    windows: Count = 128
    """Maximum number of windows, evenly spaced over the held-out text."""

    @property
    def tokens(self) -> int:
        """Maximum number of tokens predicted on the held-out text."""
        return self.windows * self.context

    @property
    def forward_flops(self) -> int:
        return self.model.flops(self.context) // self.context

    @property
    def measuring_precision(self) -> str:
        return "bfloat16" if self.model.source.dtype in ("float16", "bfloat16") else "float32"
