"""A configuration of the pruning study: a cache policy under a budget."""

from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from formerlab.cache import Budget, Simulation
from formerlab.cache.policies.policy import Policy
from formerlab.layers.position import PositionEncoding
from formerlab.results.write import Cell


class Configuration(NamedTuple):
    """A policy under a budget."""

    policy: Policy
    budget: Budget
    """Entries (int) or a share of each sequence's own length (float)."""

    def attend(self, lengths: Int[Tensor, " batch"], position: PositionEncoding | None = None) -> Simulation:
        """Return the attention of one batch whose rows have these true lengths, given the model's position encoding."""
        return Simulation(self.policy, self.budget, lengths, position=position)

    def cells(self) -> tuple[Cell, ...]:
        """Return the cells of policy, alpha, recent and budget.

        A policy is named by its kind and by what else differs from its defaults, as in `h2o variant=local_statistics`;
        alpha and recent have columns of their own, empty where a policy has no such field.
        """
        values = self.policy.model_dump(mode="json")
        changed = self.policy.model_dump(mode="json", exclude_defaults=True, exclude={"kind", "alpha", "recent"})
        name = " ".join([values["kind"], *(f"{key}={value}" for key, value in changed.items())])
        return name, values.get("alpha"), values.get("recent"), self.budget
