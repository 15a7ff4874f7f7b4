"""ReleasedRun: a released model in the place of a trained one, with what it is measured on."""

from typing import Literal

from formerlab.released import Dtype, ReleasedModel, Sizes
from formerlab.spec import Count, Seed, Size, Spec
from formerlab.training.run import Name, Run


class Pretrained(Sizes):
    """A released model as plans, records and readers of rows know it."""

    kind: Literal["released"] = "released"
    name: Name
    """Its name at the scale."""
    source: ReleasedModel
    """Where it lies, and the type that its weights are given."""


class ReleasedRun(Spec):
    """A run that trains nothing: a released model, whose loss is measured on held-out text of its own tokens."""

    study: Name
    """Study that the run belongs to."""
    name: Name
    """Name of the run within its study."""
    seed: Seed = 0
    """Always 0: nothing is drawn."""
    data: Name = "text"
    """Name of the data set, whose tokenizer is that of the model."""
    released: Name
    """The model, by its name below `released` of the scale."""
    dtype: Dtype | None = None
    """Type of its weights, where it differs from what the scale says of the model."""
    context: Size = 512
    """Tokens predicted in a window of the held-out text."""
    windows: Count = 128
    """Windows at most, evenly spread over it."""
    model: Pretrained
    """What the plan knows of the model."""

    @property
    def id(self) -> str:
        """The run's name in the whole project, which is also its folder."""
        return f"{self.study}/{self.name}/seed{self.seed}"

    @property
    def tokens(self) -> int:
        """Tokens that loading predicts on the held-out text, at most."""
        return self.windows * self.context

    @property
    def forward_flops(self) -> int:
        """FLOPs of a token, forward, in a window."""
        return self.model.flops(self.context) // self.context


AnyRun = Run | ReleasedRun
"""What measurements are made of."""
