"""Run: the spec of a training run."""

from typing import Any, Literal

from pydantic import model_validator

from formerlab.growth.stage import Growth
from formerlab.models import Model
from formerlab.spec import Count
from formerlab.tasks import LanguageModeling, Task
from formerlab.tasks.task import TRAINING_PASSES
from formerlab.training.any_run import AnyRun, Name
from formerlab.training.optimizer import AdamW, LayerwiseAdamW, Optimizer
from formerlab.training.schedule import Cosine, Schedule


class Run(AnyRun):
    """One training run."""

    model: Model
    task: Task = LanguageModeling()
    """Loss, batches and evaluation."""
    optimizer: Optimizer = AdamW()
    """Update rule and peak learning rate."""
    schedule: Schedule = Cosine()
    """Learning-rate schedule over the steps of this run."""
    steps: Count = 1000
    """Number of optimizer steps."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products; bfloat16 means autocast with float32 weights."""
    compile: bool = False
    """Use torch.compile; every process compiles the model."""
    checkpoint_activations: bool = False
    """Save only the input of each block and recompute the block in the backward pass (arXiv:1604.06174): a third more
    FLOPs for less memory, with equal losses."""
    log_every: Count = 10
    """Number of steps between two rows of train.csv and of timing.csv; the first and last steps are always logged."""
    evaluate_every: Count = 100
    """Number of steps between two evaluations on the validation split; the last step is always evaluated."""
    init: Name | None = None
    """Run of the same study and seed; this run starts from its final weights."""
    growth: Growth | None = None
    """Growth of the weights of `init` to the sizes of this run. Without `growth`, a run with `init` has the sizes of
    `init` and a fresh optimizer."""

    @model_validator(mode="before")
    @classmethod
    def _default_kinds(cls, values: Any) -> Any:
        """Set the default kinds: decoder, language_modeling and adamw."""
        if not isinstance(values, dict):
            return values
        kinds = {"model": "decoder", "task": "language_modeling", "optimizer": "adamw"}
        settings = {key: values[key] for key in kinds if isinstance(values.get(key), dict)}
        return values | {key: {"kind": kinds[key]} | value for key, value in settings.items()}

    @property
    def init_id(self) -> str | None:
        """The id of the run `init`, or None."""
        return None if self.init is None else f"{self.study}/{self.init}/seed{self.seed}"

    @property
    def tokens(self) -> int:
        return self.steps * self.task.step_tokens

    @property
    def flops(self) -> int:
        """Training FLOPs in closed form; the backward pass counts as two forward passes."""
        return TRAINING_PASSES * self.steps * self.task.step_flops(self.model)

    @property
    def forward_flops(self) -> int:
        return self.flops // (TRAINING_PASSES * self.tokens)

    @model_validator(mode="after")
    def _check(self) -> "Run":
        self.task.check(self.model)
        if isinstance(self.optimizer, LayerwiseAdamW) and (kind := self.model.kind) != "vision_transformer":
            needed = "optimizer.kind=adamw_layerwise needs model.kind=vision_transformer"
            raise ValueError(f"{needed}, not {kind}; use adamw")
        if self.growth is not None and self.init is None:
            raise ValueError("growth needs init: name the run to grow from")
        return self
