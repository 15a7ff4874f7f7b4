"""The one table of stages: what each does, for what, and which files it leaves. It imports nothing heavy.

The plan, the judge, the rules of the DAG, the verbs, the readers of rows and docs/files.md take the stages from
here. docs/extending.md shows how one is added.
"""

from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from formerlab.results.schema import NGRAMS, Table, table

WEIGHTS = "weights.safetensors"
"""The final weights of a trained run."""
OPTIMIZER = "optimizer.pt"
"""The state of the optimizer, which `train` writes beside its files where another run goes on with it."""


@dataclass(frozen=True)
class Stage:
    """A stage: work that is done once for every unit of the plan."""

    name: str
    """Its name as a verb, as a rule and in the plan; of a measurement also the key below `measure` of a study."""
    text: str
    """What it does, in a line: the help of its verb."""
    unit: Literal["data set", "run", "study", "scale"]
    """Its unit. A stage of a study times the runs beside each other, alone on the machine."""
    tables: dict[str, Table] = field(default_factory=dict)
    """Files of rows that it writes into the folder of its unit."""
    files: tuple[str, ...] = ()
    """Other files that it writes there."""
    record: str = ""
    """Its record, which it writes last and which says what the other files came from; by default <name>.json."""
    settings: str = ""
    """Of a measurement, the class of its settings, in a module below `evaluation/` with the function `measure`."""
    models: tuple[str, ...] = ()
    """Kinds of models that it measures; empty for all."""
    resumes: bool = False
    """Whether it goes on where it was stopped; any other begins anew."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "record", self.record or f"{self.name}.json")

    @property
    def module(self) -> str:
        """Return the module of a measurement as it is imported."""
        return f"formerlab.evaluation.{self.settings.rpartition('.')[0]}"

    @property
    def measuring(self) -> tuple[ModuleType, Any]:
        """Return that module and the class of its settings, imported."""
        module = import_module(self.module)
        return module, getattr(module, self.settings.rpartition(".")[2])

    @property
    def written(self) -> tuple[str, ...]:
        """Return all files that it writes, the record last."""
        return (*self.tables, *self.files, self.record)


CONFIGURATION = "policy alpha recent budget"
TEST = table("a non-overlapping window of the held-out stream (a sentence, an image), final weights",
             "window tokens loss_nats document? label? prediction? rank? confidence?", value="loss_nats")  # fmt: skip

STAGES = {stage.name: stage for stage in (
    Stage("data", "prepare a data set: tokenizer, token streams, questions, manifest", "data set",
          record="manifest.json"),
    Stage("speed", "time the runs of a study beside each other, on an idle machine", "study", {
        "speed.csv": table("a measure of a run in a repetition, the runs in turns",
                           "run measure repetition place sequences tokens time_s memory_bytes"),
    }, settings="timing.speed.Speed", models=("decoder",)),
    Stage("decode", "measure decoding against the length of the text, with whole and pruned caches, on an idle machine",
          "study", {
        "decode.csv": table("a repetition of decoding behind a prompt, the caches in turns",
                            f"run {CONFIGURATION} length sequences repetition place "
                            "time_s cache_bytes metadata_bytes prompt_s?"),
    }, settings="timing.decode.DecodeSettings", models=("decoder", "released")),
    Stage("train", "train one run, or go on with it", "run", {
        "train.csv": table("a logged training step (deterministic)",
                           "step tokens loss_nats lr grad_norm unsmoothed_nats?"),
        "timing.csv": table("the same steps (not deterministic)", "step time_s tokens_per_s memory_bytes"),
        "eval.csv": table("a batch of the fixed validation stream at a step",
                          "step split batch tokens loss_nats top1? top5?"),
        "test.csv": TEST,
        "lender_test.csv": table("the same on the test text of the data set that lends its tokenizer; none where the "
                                 "tokenizer is the run's own", "window tokens loss_nats document?"),
        "depth.csv": table("a learned mixing weight at an evaluation (DenseFormer runs)",
                           "step destination source weight"),
    }, ("run.yaml", WEIGHTS), record="run.json", resumes=True),
    Stage("load", "load a released model in place of training one, and measure its loss on the held-out text", "run",
          {"test.csv": TEST}, ("run.yaml",), record="run.json"),
    Stage("zeroshot", "answer the zero-shot questions with a finished run", "run", {
        "zeroshot.csv": table("metric of an example of a task", "task task_version example metric value choices?",
                              value="value", by="task metric"),
    }, settings="language.zeroshot.Zeroshot", models=("decoder", "released")),
    Stage("prune", "evaluate every cache policy on a finished run", "run", {
        "prune.csv": table("a window under a policy", f"{CONFIGURATION} realised_budget window tokens loss_nats "
                           "document?", value="loss_nats", by=CONFIGURATION),
        "prune_questions.csv": table("a question under a policy", f"{CONFIGURATION} realised_budget "
                                     "task task_version example metric value choices?"),
        "prune_masks.csv": table("a measure of the keys kept in a window, on unpruned attention",
                                 f"{CONFIGURATION} window metric value document?"),
        "prune_alphas.csv": table("the alpha that a way of choosing gives a head",
                                  "budget choice layer head alpha distance_to_ideal"),
        "prune_calibrated.csv": table("a test window under a choice",
                                      "budget choice realised_budget window tokens loss_nats"),
        "prune_mask_dumps.csv": table("the keys that a query sees in one head, a digit each",
                                      f"{CONFIGURATION} layer head query",
                                      {"kept": "text"}),  # 1 for every key that is seen, else 0
        "prune_score_trajectories.csv": table("scores of a group of tokens after a query",
                                              "group alpha query mean low high missed"),
        "prune_one_shot.csv": table("a window whose first half was compressed in one shot",
                                    f"{CONFIGURATION} realised_budget prompt window tokens loss_nats"),
    }, settings="pruning.prune.PruneSweep", models=("decoder", "released"), resumes=True),
    Stage("passkey", "ask a finished run, under cache policies, for a number that stands in a long text", "run", {
        "passkey.csv": table("a hidden number under a policy",
                             f"{CONFIGURATION} realised_budget length depth number found log_prob",
                             value="found", by=f"{CONFIGURATION} length"),
    }, settings="pruning.passkey.Passkey", models=("decoder", "released"), resumes=True),
    Stage("floors", "fit n-gram models, or a linear probe, to the data of a run: what its loss is to be seen against",
          "run", {
        "floors.csv": table("a window of the held-out stream (an image) under a model without depth",
                            "floor window tokens loss_nats rank?", value="loss_nats", by="floor"),
    }, settings="floors.Floors"),
    Stage("flow", "look at the flow of information over the depth of a finished run", "run", {
        "flow.csv": table("a measure of a trained model over its depth (`evaluation/language/flow.py`)",
                          "measure place kept value"),
    }, settings="language.flow.Flow", models=("decoder",)),
    Stage("translate", "translate the held-out sentences with a finished run", "run", {
        "translate.csv": table("a translated sentence of a held-out split",
                               "split sentence source_tokens reference_tokens tokens score exact"),
        "bleu.csv": table("what a sentence contributes to a corpus score",
                          f"split sentence metric {NGRAMS} length? reference_length?"),
        "attention.csv": table("an attention probability on one of a few sentences",
                               "sentence part layer head query key query_token key_token weight"),
    }, ("translations.tsv",), settings="translation.translate.Decoding", models=("translator",)),
    Stage("complexity", "count and time the layers of Table 1 of the 2017 paper, beside a run", "run", {
        "complexity.csv": table("a layer type at a length and a width",
                                "operation axis n d k r multiply_adds path time_s memory_bytes"),
    }, settings="timing.complexity.Complexity"),
    Stage("exact", "run the numeric checks of the exact claims", "scale",
          {"exact.csv": table("a number of a claim that needs no training", "claim name value")}),
)}  # fmt: skip
"""Every stage that leaves a record; parents stand before what is made from them."""
TIMED = {name: stage for name, stage in STAGES.items() if stage.settings and stage.unit == "study"}
"""Those that time runs of a study alone on the machine. They need nothing trained, and come first."""
MEASURED = {name: stage for name, stage in STAGES.items() if stage.settings and stage.unit == "run"}
"""Those that measure a finished run."""
ALONE = frozenset(stage.name for stage in STAGES.values() if stage.settings.startswith("timing."))
"""Those that measure times, for which the machine must be idle."""

MAKING = {name: stage for name, stage in STAGES.items() if stage.record == STAGES["train"].record}
"""Those that make a run; measurements treat the runs of both alike."""

TABLES = {file: found for stage in STAGES.values() for file, found in stage.tables.items()}
"""Every file of rows, by name."""
WRITER = {file: stage.name for stage in reversed(STAGES.values()) for file in stage.written}
"""The stage that writes a file, or the first of several (`MAKING`: the judge knows which it was)."""
