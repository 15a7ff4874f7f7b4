"""Mistakes in the configuration: each gives one line with file, key, value and remedy.

`MISTAKES` has (file, text that is merged over the file, part of the message).
"""

from pathlib import Path

import pytest
import yaml

from formerlab.errors import UserError
from formerlab.plan.resolve import resolve_study
from formerlab.plan.sources import read_sources

CONFIG = "config.yaml"
SCALE = "workflow/scales/smoke.yaml"
STUDY = "workflow/studies/small.yaml"
OVERLAY = "mine.yaml"
LINE = "command line"


def small(text):
    return f"studies: {{small: {{{text}}}}}"


MISTAKES = [
    # Unknown keys in every file.
    (CONFIG, "scal: laptop", "scal: unknown key (value 'laptop'); did you mean scale?"),
    (CONFIG, "smal: {steps: 3}", "smal: unknown key (value {'steps': 3}); did you mean small?"),
    (CONFIG, "small: {stepps: 3}", "small.stepps: unknown key (value 3); did you mean steps?"),
    (CONFIG, "set: 5", "set: Input should be an object (got 5)"),
    (
        OVERLAY,
        "overlay: other.yaml",
        "overlay: an overlay cannot name another overlay; write the keys of both into one",
    ),
    (OVERLAY, "set: {small.plain.steps: 3}", "set: small.plain: unknown key (value ...; write <study>.<key>, <study>"),
    (SCALE, small("onlyy: [plain]"), "studies.small.onlyy: unknown key (value ['plain']); did you mean only?"),
    (STUDY, "runs: {plain: {stepps: 3}}", "small.runs.plain.stepps: unknown key (value 3); did you mean steps?"),
    (SCALE, "defaults: {optimizer: {learning_rate: 3.0}}", "small.runs.plain.optimizer.learning_rate:...; remove it"),
    (STUDY, "measure: {prune: {budget: [0.4]}}", "small.measure.prune.budget: unknown key...; did you mean budgets?"),
    (STUDY, "measure: {flw: {runs: [plain]}}", "measure: flw: no such measurement; did you mean flow?"),
    (OVERLAY, "3: 4", "3: unknown key (value 4); write <study>.<key>, <study>.runs.<run>.<key>, scale.<key>,"),
    # Values of a wrong type, out of range, or in conflict. The message lists all files that set them.
    (LINE, "set: {small: 5}", "set: small: Input should be an object (got 5)"),
    (SCALE, "defaults: {steps: many}", "small.runs.plain.steps: Input should be a valid integer (got 'many')"),
    (SCALE, "defaults: {optimizer: {lr: 1e-3}}", "small.runs.plain.optimizer.lr: '1e-3' is text, not a number; write"),
    (OVERLAY, "scale.defaults.steps: -1", "scale: small.runs.plain.steps: Input should be greater than 0 (got -1)"),
    (CONFIG, "set: {small.steps.all: 3}", "set: small.runs.plain.steps: {'all': 3}...; write a value in both, or keys"),
    (STUDY, "runs: {plain: {model: {projection: {kind: lin}}}}", "model.projection: unknown kind 'lin'; did you mean"),
    (STUDY, "title: null", "title: missing key; add it"),
    (CONFIG, "suites: {x_local: {paths: [x]}}", "suites.x_local: missing key kind; add it"),
    (CONFIG, "data: {text: {source: {paths: [a]}}}", "data.text.source.paths: not a valid key here (value ['a'])"),
    (CONFIG, "seeds: [0, 1, 0]", "seeds: 0 is listed twice; keep one"),
    (SCALE, "defaults: {model: {heads: 3}}", "small.runs.plain.model: heads=3 does not divide width=16; change one of"),
    (STUDY, "measure: {prune: {context: 64}}", "small.measure.prune.context: 64 exceeds...; lower it"),
    (STUDY, "defaults: {model: {vocabulary: 10}}", "small.runs.plain.model.vocabulary: 10 does not ...; leave it out"),
    (STUDY, "measure: {passkey: {lengths: []}}", "small.measure.passkey.lengths: Tuple should have at least 1 item"),
    (
        STUDY,
        "defaults: {optimizer: {kind: adamw_layerwise}}",
        "optimizer.kind=adamw_layerwise needs model.kind=vision_",
    ),
    # Words and numbers that YAML reads as another type.
    (
        OVERLAY,
        "data.text: {source: {kind: hub, name: a/b, subset: no}, questions: 0}",
        "data.text.source.subset: YAML reads it as False, which is not text; write it in quotes",
    ),
    (
        OVERLAY,
        "data.text: {source: {kind: hub, name: a/b, revision: 0123456}, questions: 0}",
        "data.text.source.revision: YAML reads it as 42798, which is not text; write it in quotes",
    ),
    # Output folders, servers, and missing files.
    (CONFIG, "results: ./", "results: './' is not a valid output folder; use at most 200 letters"),
    (CONFIG, "results: '~/x'", "results: '~/x' is not a valid output folder; use at most 200 letters, digits"),
    (CONFIG, "tracking_uri: ftp://x", "tracking_uri: 'ftp://x' is not a tracking URI; write sqlite:///mlflow.db, http"),
    (
        OVERLAY,
        "data.text: {source: {kind: files, train: [none/*.txt], test: [none]}, questions: 0}",
        "data.text: source.train: no file at 'none/*.txt' (working directory ",
    ),
    (
        CONFIG,
        "data: {text: {tokenizer: {kind: file, path: none.json, vocabulary: 300}}}",
        "data.text.tokenizer: none.json: no such tokenizer file",
    ),
    # Names, patterns, grids.
    (STUDY, "runs: {plain: {name: other}}", "small.runs.plain.name: got 'other', but the plan sets it; remove it"),
    (CONFIG, "studies: [smal]", "studies: no study 'smal'; did you mean small?"),
    (STUDY, "defaults: {data: txt}", "small.runs.plain.data: no data set 'txt' at this scale; did you mean text?"),
    (CONFIG, "set: {small.runs.plian.steps: 3}", "set: small.runs.plian: no such run; did you mean plain?"),
    (SCALE, small("only: [plan]"), "studies.small.only: 'plan' matches no run; did you mean plain or parent?"),
    (SCALE, small("only: [deep-5]"), "studies.small.only: 'deep-5' matches no run at this scale; did you mean deep-4"),
    (SCALE, small("given: [plan]"), "studies.small.given: 'plan' matches no run; did you mean plain or parent?"),
    (OVERLAY, "data: {txt: {questions: 1}}", "data.txt: no run reads it; did you mean text?"),
    (SCALE, small("measure: {prune: {by_run: {'plx*': {}}}}"), "studies.small.measure.prune.by_run: 'plx*' matches no"),
    (STUDY, "measure: {speed: {runs: [plain], by_run: {plain: {repetitions: 9}}}}", "small.measure.speed.by_run: the"),
    (
        STUDY,
        "measure: {translate: {runs: [plain]}}",
        "small.measure.translate.runs: 'p...; choose runs of a translator",
    ),
    (SCALE, small("runs: {'deep-{layers}': {grid: {layers: []}}}"), "runs.deep-{layers}.grid: got {'layers': []}; set"),
    (STUDY, "runs: {plain: {grid: {layers: [1]}}}", "runs.plain.grid: got {'layers': [1]}; put {fields} into the name"),
    (STUDY, "runs: {'deep-{layers}': {model: {layers: '{layer}'}}}", "runs.deep-{layers}: no field 'layer' in the nam"),
    (SCALE, small("runs: {'deep-{layers}': {grid: {layers: [3, 3]}}}"), "runs.deep-{layers}: run 'deep"),
    # Growth, and tokenizers of other data sets.
    (STUDY, "runs: {child: {init: parnt}}", "runs.child.init: 'parnt' does not exist; did you mean parent or plain?"),
    (STUDY, "runs: {parent: {init: child, growth: {}}}", "runs.child.init: 'parent' closes a cycle (parent ->"),
    (SCALE, small("runs: {child: {model: {projection: {tokens: 4}}}}"), "runs.child.init: 'parent': ...; use at"),
    (
        STUDY,
        "runs: {child: {growth: {optimizer: carry}, optimizer: {kind: muon}}}",
        "runs.child.optimizer.kind: 'muon' cannot continue with the moments of init='parent', which has 'adamw'; make",
    ),
    (SCALE, "data: {more: {tokenizer: {kind: of, data: txt, vocabulary: 300}}}", "data.more.tokenizer.data: no data"),
    (CONFIG, "hardware: {mine: {memory_gb: 80}}", "hardware.mine.float32_tflops: missing key; add it"),
    (SCALE, "data: {more: {tokenizer: {kind: of, data: text, vocabulary: 299}}}", "data.more.tokenizer.vocabulary"),
    (
        SCALE,
        "{data: {more: {tokenizer: {kind: bpe, vocabulary: 300}}}, " + small("runs: {child: {data: more}}") + "}",
        "runs.child.data: 'more' has another tokenizer than 'text', on which init='parent' is trained; give data set",
    ),
]


@pytest.mark.parametrize(
    ("key", "value", "needs"),
    [
        *(("transformer.model.context", 12, 114), ("vision.model.image", 16, 8)),
        *(("vision.model.channels", 3, 1), ("vision.model.classes", 5, 10)),
    ],
)
def test_a_model_that_does_not_fit_its_data_is_refused(key, value, needs):
    study, command_line = key.partition(".")[0], {"scale": "smoke", "set": {key: value}}
    message = rf"{key.removeprefix(study)}: {value} does not fit .*needs {needs}; leave it out"
    with pytest.raises(UserError, match=message):
        resolve_study(study, read_sources(Path(__file__).parents[2], command_line | {"studies": [study]}))


@pytest.mark.parametrize(
    ("file", "text", "answer"), MISTAKES, ids=[f"{file}: {text}"[:70] for file, text, _ in MISTAKES]
)
def test_a_mistake_gives_one_line_with_its_file(project, file, text, answer):
    project.plan()
    command_line = {"overlay": OVERLAY} if file == OVERLAY else yaml.safe_load(text) if file == LINE else {}
    if file == OVERLAY:
        project.write(OVERLAY, text)
    elif file != LINE:
        project.merge_into(file, text)
    message = project.mistake(**command_line)
    parts = answer.split("...")
    assert all(part in message for part in parts), message
    assert file in message.partition(parts[0])[0] or "deep-{layers}: run" in answer
    assert "\n" not in message


BROKEN = {
    "key twice": ("scale: smoke\nstudies: [small]\nscale: laptop\n", "key 'scale' given twice in line 3; correct it"),
    "tab": ("scale: smoke\n\tseeds: [0]\n", "found character '\\t' that cannot start any token in line 2; correct it"),
    "list": ("- scale\n", "got ['scale']; write keys and values"),
    "no overlay": ("{overlay: mine.yml, studies: [small]}", "mine.yml: no such file; known names: config.yaml"),
}


@pytest.mark.parametrize(("text", "answer"), BROKEN.values(), ids=BROKEN)
def test_an_invalid_yaml_file_or_a_missing_overlay_gives_one_line(project, text, answer):
    project.write(project.config, text)
    assert answer in project.mistake()


def test_a_missing_file_gives_its_name(project):
    (project.root / project.config).unlink()
    assert project.mistake().startswith(f"config.yaml: not in {project.root.resolve()}; run this in a project")


def test_nested_yaml_merge_keys_are_not_reported_as_duplicates(project):
    project.write(
        project.study,
        """
title: Small
paper: none
question: Is it?
defaults: {steps: 3}
runs:
  first: &first {steps: 5}
  nested: {task: {batch: 4}}
  second: {<<: &second {<<: *first, steps: 6}, log_every: 2}
  third: {<<: *second}
""",
    )
    project.merge_into(project.scale, "studies: {small: null}")
    assert [project.run(name)["steps"] for name in ("first", "second", "third")] == [5, 6, 6]
