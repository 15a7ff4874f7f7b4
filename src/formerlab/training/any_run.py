"""AnyRun: what is measured, whether a model is trained in it or a released one stands in its place."""

from typing import Annotated, Any

from pydantic import StringConstraints

from formerlab.spec import Seed, Spec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")]


class AnyRun(Spec):
    """A run of a study on a data set."""

    study: Name
    """Study that the run belongs to."""
    name: Name
    """Name of the run within its study."""
    seed: Seed = 0
    """Seed of initial values, batches and dropout; of a released model, of which nothing is drawn, always 0."""
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
