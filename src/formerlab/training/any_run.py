"""AnyRun: a run that can be measured, which trains a model or reads a released one."""

from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from formerlab.released import Dtype, ReleasedModel, Sizes
from formerlab.spec import Count, Seed, Size, Spec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")]


class AnyRun(Spec):
    """A run of a study on a data set."""

    study: Name
    """Study that the run belongs to."""
    name: Name
    """Name of the run within its study."""
    seed: Seed = 0
    """Seed of initial values, batches and dropout; always 0 for a released model."""
    data: Name = "text"
    """Name of the data set, as the scale defines it."""
    model: Any
    """The model."""

    @property
    def id(self) -> str:
        """The run's name in the whole project, which is also its folder."""
        return f"{self.study}/{self.name}/seed{self.seed}"

    @property
    def tokens(self) -> int:
        """Tokens that are predicted."""
        raise NotImplementedError

    @property
    def forward_flops(self) -> int:
        """FLOPs of a token, forward."""
        raise NotImplementedError

    @property
    def measured_in(self) -> str:
        """Type of the products when the model is measured: our own models compute in float32."""
        return "float32"


class Pretrained(Sizes):
    """A released model as plans, records and readers of rows know it."""

    kind: Literal["released"] = "released"
    name: Name
    """Its name at the scale."""
    source: ReleasedModel
    """Its files, and the type of its weights in memory."""


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
        return self.model.flops(self.context) // self.context

    @property
    def measured_in(self) -> str:
        return "bfloat16" if self.model.source.dtype in ("float16", "bfloat16") else "float32"
