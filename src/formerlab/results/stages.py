"""The table of stages: name, description, unit and files of each stage. Importing it is cheap.

docs/extending.md shows how to add a stage.
"""

from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from formerlab.results.schema import NGRAMS, Table, table

WEIGHTS = "weights.safetensors"
"""The final weights of a trained run."""
OPTIMIZER = "optimizer.pt"
"""The state of the optimizer, which `train` writes only if another run continues from it."""


@dataclass(frozen=True)
class Stage:
    """A stage, which runs once for every unit of the plan."""

    name: str
    """Name of the command, the rule and the stage in the plan; for a measurement, also its key in `measure`."""
    description: str
    """The help text of the command."""
    unit: Literal["data set", "run", "study", "scale"]
    """Unit of work. A stage with the unit "study" runs alone on the machine."""
    tables: dict[str, Table] = field(default_factory=dict)
    """Files of rows that the stage writes into the folder of its unit."""
    files: tuple[str, ...] = ()
    """Other files that the stage writes into this folder."""
    record: str = ""
    """File name of the record, which is written last; by default <name>.json."""
    settings: str = ""
    """Class of the settings of a measurement, as <module>.<class> in `evaluation/` or as a full import path; the module
    has a function `measure`."""
    models: tuple[str, ...] = ()
    """Kinds of models that the stage loads; empty if it loads no model."""
    resumes: bool = False
    """Whether a stopped stage continues from its last state."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "record", self.record or f"{self.name}.json")

    @property
    def module(self) -> str:
        """The import path of the module of a measurement."""
        module = self.settings.rpartition(".")[0]
        return module if module.startswith("formerlab.") else f"formerlab.evaluation.{module}"

    @property
    def measuring(self) -> tuple[ModuleType, Any]:
        """The module of a measurement and the class of its settings."""
        module = import_module(self.module)
        return module, getattr(module, self.settings.rpartition(".")[2])

    @property
    def written(self) -> tuple[str, ...]:
        """The names of all files that the stage writes; the record is the last."""
        return (*self.tables, *self.files, self.record)


CONFIGURATION = "policy alpha recent budget"
TEST = table("a non-overlapping window of the held-out stream (or a sentence, or an image), with the final weights",
             "window tokens loss_nats document? label? prediction? rank? confidence?", value="loss_nats")  # fmt: skip

STAGES = {stage.name: stage for stage in (
    Stage("data", "prepare a data set: tokenizer, token streams, questions, manifest", "data set",
          record="manifest.json"),
    Stage("speed", "time the runs of a study in turns, on an idle machine", "study", {
        "speed.csv": table("a measure of a run in one repetition; repetitions of the runs alternate",
                           "run measure repetition place sequences tokens time_s memory_bytes"),
    }, settings="timing.speed.Speed", models=("decoder",)),
    Stage("decode", "time decoding by length of the text, with full and pruned caches, on an idle machine", "study", {
        "decode.csv": table("a repetition of decoding after a prompt; repetitions of the caches alternate",
                            f"run {CONFIGURATION} length sequences repetition place "
                            "time_s cache_bytes metadata_bytes prompt_s?"),
    }, settings="timing.decode.DecodeSettings", models=("decoder", "released")),
    Stage("train", "train or resume one run", "run", {
        "train.csv": table("a logged training step (deterministic)",
                           "step tokens loss_nats lr grad_norm unsmoothed_nats?"),
        "timing.csv": table("timing of a logged training step (not deterministic)",
                            "step time_s tokens_per_s memory_bytes"),
        "eval.csv": table("a batch of the fixed validation stream at a step",
                          "step split batch tokens loss_nats top1? top5?"),
        "test.csv": TEST,
        "lender_test.csv": table("a window of the test text of the data set whose tokenizer the run uses; no rows if "
                                 "the run's data has its own tokenizer", "window tokens loss_nats document?"),
        "depth.csv": table("a learned mixing weight at an evaluation step (DenseFormer runs)",
                           "step destination source weight"),
    }, ("run.yaml", WEIGHTS), record="run.json", resumes=True),
    Stage("load", "load a released model instead of training one, and measure its loss on the held-out text", "run",
          {"test.csv": TEST}, ("run.yaml",), record="run.json"),
    Stage("zeroshot", "answer the zero-shot questions with a finished run", "run", {
        "zeroshot.csv": table("a metric of one example of a task", "task task_version example metric value choices?",
                              value="value", by="task metric"),
    }, settings="language.zeroshot.Zeroshot", models=("decoder", "released")),
    Stage("prune", "evaluate every cache policy on a finished run", "run", {
        "prune.csv": table("a window under a policy", f"{CONFIGURATION} realised_budget window tokens loss_nats "
                           "document?", value="loss_nats", by=CONFIGURATION),
        "prune_questions.csv": table("a question under a policy", f"{CONFIGURATION} realised_budget "
                                     "task task_version example metric value choices?"),
        "prune_masks.csv": table("a measure of the retained keys in a window, from the attention of the full cache",
                                 f"{CONFIGURATION} window metric value document?"),
        "prune_alphas.csv": table("the alpha of a head under one method of choosing alpha",
                                  "budget choice layer head alpha distance_to_ideal"),
        "prune_calibrated.csv": table("a test window under one method of choosing alpha",
                                      "budget choice realised_budget window tokens loss_nats"),
        "prune_mask_dumps.csv": table("the keys that a query sees in one head, one digit per key",
                                      f"{CONFIGURATION} layer head query",
                                      {"kept": "text"}),  # 1 for a visible key, otherwise 0
        "prune_score_trajectories.csv": table("scores of a group of tokens after a query",
                                              "group alpha query mean low high missed"),
        "prune_one_shot.csv": table("a window whose first half is compressed, in one shot or after every token",
                                    f"{CONFIGURATION} realised_budget prompt window tokens loss_nats"),
    }, settings="pruning.prune.PruneSweep", models=("decoder", "released"), resumes=True),
    Stage("passkey", "retrieve a number hidden in a long text with a finished run, under cache policies", "run", {
        "passkey.csv": table("a hidden number under a policy",
                             f"{CONFIGURATION} realised_budget length depth number found log_prob",
                             value="found", by=f"{CONFIGURATION} length"),
    }, settings="pruning.passkey.Passkey", models=("decoder", "released"), resumes=True),
    Stage("answers", "generate answers to tasks with a released model, under cache policies", "run", {
        "answers.csv": table("a metric of a generated answer under a policy",
                             f"{CONFIGURATION} task task_version example metric value",
                             value="value", by=f"{CONFIGURATION} task metric"),
    }, settings="formerlab.integrations.generative.GenerativeTasks", models=("released",), resumes=True),
    Stage("floors", "fit baselines (n-gram models or a linear probe) to the data of a run", "run", {
        "floors.csv": table("a window of the held-out stream (or an image) under a baseline",
                            "floor window tokens loss_nats rank?", value="loss_nats", by="floor"),
    }, settings="baselines.Baselines"),
    Stage("flow", "measure the flow of information over the depth of a finished run", "run", {
        "flow.csv": table("a measure of a trained model at one depth (`evaluation/language/flow.py`)",
                          "measure place kept value"),
    }, settings="language.flow.Flow", models=("decoder",)),
    Stage("translate", "translate the held-out sentences with a finished run", "run", {
        "translate.csv": table("a translated sentence of a held-out split",
                               "split sentence source_tokens reference_tokens tokens score exact"),
        "bleu.csv": table("the counts that a sentence adds to a corpus score",
                          f"split sentence metric {NGRAMS} length? reference_length?"),
        "attention.csv": table("an attention probability on one of a few sentences",
                               "sentence part layer head query key query_token key_token weight"),
    }, ("translations.tsv",), settings="translation.translate.Decoding", models=("translator",)),
    Stage("complexity", "count operations and time the layers of Table 1 of the 2017 paper, once per run", "run", {
        "complexity.csv": table("a layer type at one length and width",
                                "operation axis n d k r multiply_adds path time_s memory_bytes"),
    }, settings="timing.complexity.Complexity"),
    Stage("exact", "run the numeric checks of the exact claims", "scale",
          {"exact.csv": table("a number of a claim that needs no training", "claim name value")}),
)}  # fmt: skip
"""All stages with a record, in order of their dependencies."""
TIMED = {name: stage for name, stage in STAGES.items() if stage.settings and stage.unit == "study"}
"""Stages that time the runs of a study, alone on the machine. They need no trained weights and run first."""
MEASURED = {name: stage for name, stage in STAGES.items() if stage.settings and stage.unit == "run"}
"""Stages that measure a finished run."""
ALONE = frozenset(stage.name for stage in STAGES.values() if stage.settings.startswith("timing."))
"""Stages that measure time and need an idle machine."""

MAKING = {name: stage for name, stage in STAGES.items() if stage.record == STAGES["train"].record}
"""Stages that create a run: train and load."""

TABLES = {file: rows for stage in STAGES.values() for file, rows in stage.tables.items()}
"""All files of rows, by name."""
WRITER = {file: stage.name for stage in reversed(STAGES.values()) for file in stage.written}
"""The stage that writes each file; `train` for files that train and load write."""
