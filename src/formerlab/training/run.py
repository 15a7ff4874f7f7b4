"""Run: everything that `train` needs to know."""

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
    """One training run: a model, what it learns from which data, how long, and what it starts from."""

    model: Model
    """The model."""
    task: Task = LanguageModeling()
    """What it learns."""
    optimizer: Optimizer = AdamW()
    """The optimizer."""
    schedule: Schedule = Cosine()
    """Learning-rate schedule over the steps of this run."""
    steps: Count = 1000
    """Optimizer steps."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products; bfloat16 means autocast with float32 weights."""
    compile: bool = False
    """Use torch.compile (costs its compilation in every process)."""
    checkpoint_activations: bool = False
    """Let every block keep its input alone for the backward pass, which computes the block again (arXiv:1604.06174):
    much less memory for a third more time; the losses are the same."""
    log_every: Count = 10
    """Steps between two rows of train.csv and timing.csv."""
    evaluate_every: Count = 100
    """Steps between two evaluations on the validation stream; the last step is always evaluated."""
    init: Name | None = None
    """Run of the same study and seed whose final weights this run starts from."""
    growth: Growth | None = None
    """How the weights of `init` grow to this run's sizes; empty means that they go on as they are, with a fresh
    optimizer. Needs `init`."""

    @model_validator(mode="before")
    @classmethod
    def _usual_kinds(cls, values: Any) -> Any:
        """Without their kind a model is a decoder, a task language modelling, and an optimizer AdamW."""
        if not isinstance(values, dict):
            return values
        usual = {"model": {"kind": "decoder"}, "task": {"kind": "language_modeling"}, "optimizer": {"kind": "adamw"}}
        given = {key: values[key] for key in usual if isinstance(values.get(key), dict)}
        return values | {key: usual[key] | value for key, value in given.items()}

    @property
    def init_id(self) -> str | None:
        """The id of the run that this one starts from."""
        return None if self.init is None else f"{self.study}/{self.init}/seed{self.seed}"

    @property
    def tokens(self) -> int:
        """Tokens that the whole run predicts."""
        return self.steps * self.task.step_tokens

    @property
    def flops(self) -> int:
        """Training FLOPs in closed form: backward costs twice the forward."""
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
