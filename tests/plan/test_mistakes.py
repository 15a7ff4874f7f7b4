"""Mistakes in the configuration: each is answered by one line that names file, key, value and remedy.

`MISTAKES` holds (what is laid over the files of the small project, the answer). The same table can be read from top to
bottom to judge how the messages read.
"""

import pytest

CONFIG = "config.yaml"
SCALE = "workflow/scales/smoke.yaml"
STUDY = "workflow/studies/small.yaml"
LINE = "command line"


def small(text):
    return f"studies: {{small: {{{text}}}}}"


MISTAKES = {
    # Keys that do not exist, at every level.
    "config": (CONFIG, "scal: laptop", f"{CONFIG}: scal: unknown key (value 'laptop'); did you mean scale?"),
    "scale": (SCALE, "memory: 3", f"{SCALE}: memory: unknown key (value 3); did you mean memory_mb"),
    "scale of a study": (
        SCALE,
        small("onlyy: [plain]"),
        f"{SCALE}: studies.small.onlyy: unknown key (value ['plain']); did you mean only?",
    ),
    "study": (STUDY, "papr: none", f"{STUDY}: papr: unknown key (value 'none'); did you mean paper?"),
    "run": (
        STUDY,
        "runs: {plain: {stepps: 3}}",
        f"{STUDY}: small.runs.plain.stepps: unknown key (value 3); did you mean steps?",
    ),
    "model": (
        STUDY,
        "runs: {plain: {model: {widht: 3}}}",
        f"{STUDY}: small.runs.plain.model.widht: unknown key (value 3); did you mean width?",
    ),
    "optimizer": (
        SCALE,
        "defaults: {optimizer: {learning_rate: 3.0}}",
        f"{SCALE}: small.runs.plain.optimizer.learning_rate: unknown key (value 3.0); remove it",
    ),
    "sweep": (
        STUDY,
        "measure: {prune: {budget: [0.4]}}",
        f"{STUDY}: small.measure.prune.budget: unknown key (value [0.4]); did you mean budgets?",
    ),
    "set": (
        CONFIG,
        "set: {small.optimizer.lrr: 1.0}",
        f"{CONFIG}: set: small.runs.plain.optimizer.lrr: unknown key (value 1.0); did you mean lr?",
    ),
    "set: study": (CONFIG, "set: {smll: {steps: 3}}", "config.yaml: set: smll: unknown key (value {'steps': 3});"),
    "set: scale": (CONFIG, "set: {scale.memory: 3}", f"{CONFIG}: set: scale: memory: unknown key (value 3); did you"),
    "set: run": (
        CONFIG,
        "set: {small.runs.plian.steps: 3}",
        f"{CONFIG}: set: small.runs.plian: no such run; did you mean plain?",
    ),
    # Types and ranges.
    "text": (
        SCALE,
        "defaults: {steps: many}",
        f"{SCALE}: small.runs.plain.steps: Input should be a valid integer (got 'many')",
    ),
    "fraction": (
        SCALE,
        "defaults: {steps: 2.5}",
        f"{SCALE}: small.runs.plain.steps: Input should be a valid integer (got 2.5)",
    ),
    "number for a mapping": (
        SCALE,
        "defaults: {task: 3}",
        f"{SCALE}: small.runs.plain.task: Input should be an object (got 3)",
    ),
    "number where others have keys": (
        SCALE,
        "defaults: {model: 3}",
        f"{SCALE}: small.runs.plain.model: 3 does not go with {{'vocabulary': 300, 'context': 32}} of {STUDY}; write a",
    ),
    "keys where others have a number": (
        CONFIG,
        "set: {small.steps.all: 3}",
        f"{CONFIG}: set: small.runs.plain.steps: {{'all': 3}} does not go with 20 of {SCALE}; write a value in both,",
    ),
    "number for a truth value": (
        STUDY,
        "runs: {plain: {compile: 1}}",
        f"{STUDY}: small.runs.plain.compile: Input should be a valid boolean (got 1)",
    ),
    "1e-3": (
        SCALE,
        "defaults: {optimizer: {lr: 1e-3}}",
        f"{SCALE}: small.runs.plain.optimizer.lr: '1e-3' is text, not a number; write 1.0e-3 without quotes "
        "(YAML needs dot and sign)",
    ),
    "2e10": (
        SCALE,
        "flops_per_s: 2e10",
        f"{SCALE}: flops_per_s: '2e10' is text, not a number; write 2.0e+10 without quotes (YAML needs dot and sign)",
    ),
    "negative steps": (
        SCALE,
        "defaults: {steps: -5}",
        f"{SCALE}: small.runs.plain.steps: Input should be greater than 0 (got -5)",
    ),
    "no number": (
        SCALE,
        "defaults: {optimizer: {lr: .nan}}",
        f"{SCALE}: small.runs.plain.optimizer.lr: Input should be a finite number (got nan)",
    ),
    "budget above 1": (
        STUDY,
        "measure: {prune: {budgets: [1.5]}}",
        f"{STUDY}: small.measure.prune.budgets.0: Input should be less than or equal to 1 (got 1.5)",
    ),
    "kind": (
        STUDY,
        "runs: {plain: {model: {projection: {kind: liner}}}}",
        f"{STUDY}: small.runs.plain.model.projection: unknown kind 'liner'; did you mean linear?",
    ),
    "no kind": (
        STUDY,
        "runs: {plain: {model: {norm: {gain: true}}}}",
        f"{STUDY}: small.runs.plain.model.norm: missing key kind in {{'gain': True}}; add it",
    ),
    "kind of a policy": (
        STUDY,
        "measure: {prune: {policies: [{kind: dekay}]}}",
        f"{STUDY}: small.measure.prune.policies.0: unknown kind 'dekay'; did you mean decay or ideal?",
    ),
    # Sizes that nothing can have, by themselves and together.
    "lr": (
        SCALE,
        "defaults: {optimizer: {lr: 1.0e+12}}",
        f"{SCALE}: small.runs.plain.optimizer.lr: Input should be less than or equal to 10 (got 1000000000000.0)",
    ),
    "width": (
        SCALE,
        "defaults: {model: {width: 1000000000000}}",
        f"{SCALE}: small.runs.plain.model.width: Input should be less than or equal to 10000000 (got 1000000000000)",
    ),
    "weights": (
        SCALE,
        "defaults: {model: {width: 1000000}}",
        f"{SCALE}: small.runs.plain.model: its weights take 96 TB, more than 10 TB; make it smaller",
    ),
    "activations": (
        CONFIG,
        "set: {small.task.batch: 100000000}",
        f"{CONFIG}: set: small.runs.plain.task: a part of a step keeps 15.5 TB for the backward pass, more than 10 TB;",
    ),
    "FLOPs": (
        SCALE,
        "defaults: {steps: 1000000000, model: {width: 200000}, task: {batch: 80000, accumulate: 20}}",
        f"{SCALE}: small.runs.plain.steps: training takes 1.47e+28 FLOPs, more than 1e+28; make fewer or smaller steps",
    ),
    "alpha of an arm": (
        STUDY,
        "claims: {some: {arms: {decay: {run: plain, alpha: -0.2}}}}",
        f"{STUDY}: claims.some.arms.decay.alpha: Input should be greater than or equal to 0 (got -0.2)",
    ),
    "recent of a policy": (
        STUDY,
        "measure: {prune: {policies: [{kind: decay, recent: 1.0e+9}]}}",
        f"{STUDY}: small.measure.prune.policies.0.recent: Input should be less than or equal to 1 (got 1000000000.0)",
    ),
    "seed": (
        CONFIG,
        "seeds: [4294967296]",
        f"{CONFIG}: seeds.0: Input should be less than 4294967296 (got 4294967296)",
    ),
    # Values of runs that this scale leaves out, and values that another layer hides.
    "run left out": (
        SCALE,
        "{defaults: {optimizer: {lr: 1.0e-3}}, studies: {small: {only: [plain], runs: {parent: {steps: -1}}}}}",
        f"{SCALE}: small.runs.parent.steps: Input should be greater than 0 (got -1)",
    ),
    "key of a run left out": (
        SCALE,
        small("only: [plain], runs: {parent: {stepps: 3}}"),
        f"{SCALE}: small.runs.parent.stepps: unknown key (value 3); did you mean steps?",
    ),
    "name of a run left out": (
        STUDY,
        "runs: {'deep-X': {}}",
        f"{STUDY}: small.runs.deep-X.name: 'deep-X' is no name; use 1 to 100 of a-z 0-9 _ -, a letter or digit first",
    ),
    "template without values": (
        STUDY,
        "runs: {'other-{x}': {model: {layers: '{x}', width: -1}}}",
        f"{STUDY}: runs.other-{{x}}.model.width: Input should be greater than 0 (got -1)",
    ),
    "hidden by another layer": (
        SCALE,
        "{defaults: {steps: -1}, studies: {small: {defaults: {steps: 3}}}}",
        f"{SCALE}: small.runs.plain.steps: Input should be greater than 0 (got -1)",
    ),
    "sweep of no run": (
        SCALE,
        "{defaults: {steps: 3}, studies: {small: {only: [parent], measure: {prune: {budgets: [0.0]}}}}}",
        f"{SCALE}: small.measure.prune.budgets.0: Input should be greater than 0 (got 0.0)",
    ),
    "translation of no run": (
        SCALE,
        small("measure: {translate: {by_run: {parent: {beam: 0}}}}"),
        f"{SCALE}: small.measure.translate.beam: Input should be greater than 0 (got 0)",
    ),
    # Places to write to.
    "no folder": (
        CONFIG,
        "results: ''",
        f"{CONFIG}: results: '' is no folder to write into; name one, such as results",
    ),
    "root": (CONFIG, "figures: /tmp/..", f"{CONFIG}: figures: '/tmp/..' is no folder to write into; name one, such as"),
    "the project": (CONFIG, "results: ./", f"{CONFIG}: results: './' is no folder to write into; name one, such as"),
    "home": (
        CONFIG,
        "results: '~/x'",
        f"{CONFIG}: results: '~/x' is taken as it stands; use letters, digits, spaces and",
    ),
    "wildcard": (CONFIG, "results: 'a{b}'", f"{CONFIG}: results: 'a{{b}}' is taken as it stands; use letters, digits"),
    "option": (CONFIG, "figures: --help", f"{CONFIG}: figures: '--help' begins like an option; write ./--help"),
    "file": (CONFIG, "results: config.yaml/x", f"{CONFIG}: results: "),
    "tracking": (
        CONFIG,
        "tracking_uri: ftp://x",
        f"{CONFIG}: tracking_uri: 'ftp://x' is no tracking server; write sqlite:///mlflow.db, http(s)://server, or",
    ),
    "tracking without a file": (
        CONFIG,
        "tracking_uri: 'sqlite:///'",
        f"{CONFIG}: tracking_uri: 'sqlite:///' is no track",
    ),
    # Files that are not there.
    "own text": (
        CONFIG,
        "data: {text: {source: {kind: files, train: [none/*.txt], test: [none]}, questions: 0}}",
        f"{CONFIG}: data.text: source.train: no file at 'none/*.txt' (working directory ",
    ),
    "own tokenizer": (
        CONFIG,
        "data: {text: {tokenizer: {kind: file, path: none.json, vocabulary: 300}}}",
        f"{CONFIG}: data.text.tokenizer: none.json: no such tokenizer file",
    ),
    "own images": (
        CONFIG,
        "data: {pictures: {kind: images, source: {kind: folders, train: none}}}",
        f"{CONFIG}: data.pictures: data: source.train: none is no folder; name one with a folder per class",
    ),
    "own suite": (
        CONFIG,
        "suites: {mine_local: {kind: files, paths: ['none/*']}}",
        f"{CONFIG}: suites.mine_local.paths: no file at 'none/*' (working directory ",
    ),
    # Seeds and names.
    "no seeds": (CONFIG, "seeds: []", f"{CONFIG}: seeds: [] is empty; give at least one value, or leave the key out"),
    "a seed twice": (CONFIG, "seeds: [0, 1, 0]", f"{CONFIG}: seeds: 0 stands here twice; keep one"),
    "negative seed": (CONFIG, "seeds: [-1]", f"{CONFIG}: seeds.0: Input should be greater than or equal to 0 (got -1)"),
    "name with a slash": (
        STUDY,
        "runs: {a/b: {steps: 3}}",
        f"{STUDY}: small.runs.a/b.name: 'a/b' is no name; use 1 to 100 of a-z 0-9 _ -, a letter or digit first",
    ),
    "name as a key": (
        STUDY,
        "runs: {plain: {name: other}}",
        f"{STUDY}: small.runs.plain.name: got 'other', but the run's place says it; remove it",
    ),
    "unknown study": (CONFIG, "studies: [smal]", f"{CONFIG}: studies: no study 'smal'; did you mean small?"),
    "study of the scale": (
        SCALE,
        "studies: {smalll: {}}",
        f"{SCALE}: studies.smalll: no such study; did you mean small?",
    ),
    "unknown scale": (
        CONFIG,
        "scale: laptopp",
        f"{CONFIG}: scale: Input should be 'smoke', 'laptop', 'pilot', 'overnight', 'pretrained', 'workstation' or "
        "'paper' (got 'laptopp')",
    ),
    "missing scale": (CONFIG, "scale: paper", "workflow/scales/paper.yaml: no such file; did you mean smoke.yaml?"),
    "unknown data": (
        STUDY,
        "defaults: {data: txt}",
        f"{STUDY}: small.runs.plain.data: no data set 'txt' at this scale; did you mean text?",
    ),
    "missing overlay": (CONFIG, "overlay: mine.yml", "mine.yml: no such file; known are config.yaml"),
    "endless overlay": (CONFIG, "overlay: /dev/zero", "/dev/zero: a folder or device; name a file"),
    "seeds": (SCALE, "seeds: 3", f"{SCALE}: seeds: 3 is no list; write [3] for this one, [0, 1, 2]"),
    "keep": (
        SCALE,
        "data: {pictures: {kind: images, keep: null}}",
        "pictures.keep: null is no value of this",
    ),
    "path": (
        SCALE,
        "data: {pictures: {kind: images, source: {kind: folders, path: x}}}",
        "images have no 'path'; write train",
    ),
    "missing key": (STUDY, "title: null", f"{STUDY}: title: missing key; add it"),
    # What does not fit together.
    "heads": (
        SCALE,
        "defaults: {model: {heads: 3}}",
        f"{SCALE}: small.runs.plain.model: heads=3 does not divide width=16; change one of them",
    ),
    "rotary": (
        STUDY,
        "defaults: {model: {position: {kind: rotary, fraction: 0.1}}}",
        "rotary positions need at least 2 channels per head: width=16, heads=2, position.fraction=0.1; change one",
    ),
    "accumulate": (
        SCALE,
        "defaults: {task: {accumulate: 3}}",
        f"{SCALE}: small.runs.plain: task.accumulate=3 does not divide task.batch=4; change one of them",
    ),
    "context": (
        STUDY,
        "defaults: {model: {context: 16}}",
        f"{STUDY}: small.runs.plain: task.context=32 exceeds model.context=16; change one of them",
    ),
    "context of a sweep": (
        STUDY,
        "measure: {prune: {context: 64}}",
        f"{STUDY}: small.measure.prune.context: 64 exceeds model.context=32 of run 'plain'; lower it",
    ),
    "vocabulary": (
        STUDY,
        "defaults: {model: {vocabulary: 10}}",
        f"{STUDY}: small.runs.plain.model.vocabulary: 10 is less than the 300 tokens of data set 'text'; leave it out",
    ),
    "questions of files": (
        CONFIG,
        "data: {text: {source: {kind: files, train: [a.txt]}}}",
        f"{CONFIG}: data.text: questions are made from the docstrings of source 'embedded' only; set questions: 0",
    ),
    # Growth.
    "misspelt parent": (
        STUDY,
        "runs: {child: {init: parnt}}",
        f"{STUDY}: runs.child.init: 'parnt' does not exist; did you mean parent or plain?",
    ),
    "missing parent": (
        STUDY,
        "runs: {child: {init: xyz}}",
        f"{STUDY}: runs.child.init: 'xyz' does not exist; known are deep-3, deep-4, parent, plain",
    ),
    "parent not at this scale": (
        SCALE,
        small("only: [plain, child]"),
        f"{STUDY}: runs.child.init: 'parent' is left out at this scale by `only`; known are plain",
    ),
    "cycle": (
        STUDY,
        "runs: {parent: {init: child, growth: {}}}",
        f"{STUDY}: runs.parent.init: 'child' closes a cycle (parent -> child -> parent); start one from scratch",
    ),
    "cycle of one": (
        STUDY,
        "runs: {child: {init: child}}",
        f"{STUDY}: runs.child.init: 'child' closes a cycle (child -> child); start one from scratch",
    ),
    "fewer tokens": (
        SCALE,
        small("runs: {child: {model: {projection: {tokens: 4}}}}"),
        f"{SCALE}: runs.child.init: 'parent': cannot grow projection.tokens=8 into 4: growth never removes tokens; "
        "ask for at least 8",
    ),
    "other width": (
        STUDY,
        "runs: {child: {model: {width: 32}}}",
        f"{STUDY}: runs.child.init: 'parent': cannot grow width=16 into width=32: growth only adds Pattention tokens; "
        "make them equal",
    ),
    "growth without init": (
        STUDY,
        "runs: {child: {init: null}}",
        f"{STUDY}: small.runs.child: growth needs init: name the run to grow from",
    ),
    "larger without growth": (
        STUDY,
        "runs: {child: {growth: null}}",
        f"{SCALE}: runs.child.init: 'parent': cannot go on from projection.tokens=8 with projection.tokens=16; make "
        "them equal, or add the key growth",
    ),
    # Tokenizers of other data sets.
    "no such data set": (
        SCALE,
        "data: {more: {tokenizer: {kind: of, data: txt, vocabulary: 300}}}",
        f"{SCALE}: data.more.tokenizer.data: no data set 'txt' at this scale; did you mean text?",
    ),
    "another vocabulary": (
        SCALE,
        "data: {more: {tokenizer: {kind: of, data: text, vocabulary: 299}}}",
        f"{SCALE}: data.more.tokenizer.vocabulary: 299, but data set 'text' has 300; leave it out",
    ),
    "tokenizers in a circle": (
        SCALE,
        "data: {text: {tokenizer: {kind: of, data: text, vocabulary: 300}}}",
        f"{SCALE}: data.text.tokenizer.data: 'text' closes a cycle (text -> text); name another",
    ),
    "parent with another tokenizer": (
        SCALE,
        "{data: {more: {tokenizer: {kind: bpe, vocabulary: 300}}}, " + small("runs: {child: {data: more}}") + "}",
        f"{SCALE}: runs.child.data: 'more' has another tokenizer than 'text', on which init='parent' is trained; give "
        "data set 'more' tokenizer: {kind: of, data: text, ...}",
    ),
    # Patterns and grids.
    "pattern of only": (
        SCALE,
        small("only: [plan]"),
        f"{SCALE}: studies.small.only: 'plan' matches no run; did you mean plain or parent?",
    ),
    "pattern of runs": (
        SCALE,
        small("runs: {'chld*': {steps: 3}}"),
        f"{SCALE}: studies.small.runs: 'chld*' matches no run; did you mean child?",
    ),
    "pattern of questions": (
        STUDY,
        "measure: {zeroshot: {runs: [plian]}}",
        f"{STUDY}: measure.zeroshot.runs: 'plian' matches no run; did you mean plain?",
    ),
    "pattern of sweeps": (
        SCALE,
        small("measure: {prune: {by_run: {'plx*': {windows: 3}}}}"),
        f"{SCALE}: studies.small.measure.prune.by_run: 'plx*' matches no",
    ),
    "pattern of flow": (
        SCALE,
        small("measure: {flow: {runs: [plian]}}"),
        f"{SCALE}: studies.small.measure.flow.runs: 'plian' matches no",
    ),
    "pattern of speed": (
        STUDY,
        "measure: {speed: {runs: ['x*']}}",
        f"{STUDY}: measure.speed.runs: 'x*' matches no run; known are child, ",
    ),
    "name of a measurement": (
        STUDY,
        "measure: {flw: {runs: [plain]}}",
        f"{STUDY}: measure: flw: nothing is measured by this name; did you mean flow?",
    ),
    "measurement in its old place": (
        STUDY,
        "flow: {runs: [plain]}",
        f"{STUDY}: flow: is measure.flow now; write measure.flow: {{runs: [...], ...}}",
    ),
    "measurement in its old place at a scale": (
        SCALE,
        small("zeroshot: [plain]"),
        f"{SCALE}: studies.small.zeroshot: is studies.small.measure.zeroshot now; write ",
    ),
    "key of a former version": (
        STUDY,
        "measure: {prune: {picture_tokens: 8}}",
        f"{STUDY}: small.measure.prune.picture_tokens: is mask_dump_tokens now; rename it",
    ),
    "value of a former version": (
        STUDY,
        "measure: {prune: {policies: [{kind: streaming_llm, positions: renumbered}]}}",
        f"{STUDY}: small.measure.prune.policies.0.positions: Input should be 'kept' or 'reindexed' (got 'renumbered')",
    ),
    "settings of single runs that are timed together": (
        STUDY,
        "measure: {speed: {runs: [plain], by_run: {plain: {repetitions: 9}}}}",
        f"{STUDY}: small.measure.speed.by_run: the runs are timed together, with the same settings; remove it",
    ),
    "measurement of another kind of model": (
        STUDY,
        "measure: {translate: {runs: [plain]}}",
        f"{STUDY}: small.measure.translate.runs: 'plain' has model.kind=decoder; name runs of a translator",
    ),
    "pattern of translations": (
        STUDY,
        "measure: {translate: {by_run: {plian: {}}}}",
        f"{STUDY}: measure.translate.by_run: 'plian' matches no run; did you",
    ),
    "field in a pattern": (
        SCALE,
        small("only: ['deep-{l}']"),
        f"{SCALE}: studies.small.only: 'deep-{{l}}' matches no run",
    ),
    "fields of a grid": (
        SCALE,
        small("runs: {'deep-{layers}': {grid: [{layer: 3}]}}"),
        f"{SCALE}: runs.deep-{{layers}}.grid: got [{{'layer': 3}}]; give values for exactly {{layers: [...]}}",
    ),
    "empty grid": (
        SCALE,
        small("runs: {'deep-{layers}': {grid: {layers: []}}}"),
        f"{SCALE}: runs.deep-{{layers}}.grid: got {{'layers': []}}; give values for exactly {{layers: [...]}}",
    ),
    "grid without fields": (
        STUDY,
        "runs: {plain: {grid: {layers: [1]}}}",
        f"{STUDY}: runs.plain.grid: got {{'layers': [1]}}; put {{fields}} into the name of the run",
    ),
    "field that the name lacks": (
        STUDY,
        "runs: {'deep-{layers}': {model: {layers: '{layer}'}}}",
        f"{STUDY}: runs.deep-{{layers}}: no field 'layer' in the name of the run; did you mean layers?",
    ),
    "a run twice": (
        SCALE,
        small("runs: {'deep-{layers}': {grid: {layers: [3, 3]}}}"),
        f"{STUDY}: runs.deep-{{layers}}: gives a second run 'deep-3'; remove one",
    ),
}

BROKEN = {
    "key twice": ("scale: smoke\nstudies: [small]\nscale: laptop\n", "key 'scale' given twice in line 3; correct it"),
    "bracket": ("scale: [smoke\nstudies: small\n", "expected ',' or ']', but got ':' in line 2; correct it"),
    "tab": ("scale: smoke\n\tseeds: [0]\n", "found character '\\t' that cannot start any token in line 2; correct it"),
    "self": ("set: &all {small: *all}\n", "an alias stands within what it names in line 1; correct it"),
    "bomb": (
        "\n".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10 if n else 'x'}]" for n in range(9)) + "\n",
        "its aliases stand for more than 100000 values; correct it",
    ),
    "list": ("- scale\n", "got ['scale']; write keys and values"),
}


@pytest.mark.parametrize(("file", "text", "answer"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_in_one_line(project, file, text, answer):
    project.plan()
    project.lay_over(file, text)
    message = project.mistake()
    assert answer in message
    assert "\n" not in message


@pytest.mark.parametrize(("text", "answer"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_no_yaml_mapping_is_named_with_the_line(project, text, answer):
    project.write(project.config, text)
    assert answer in project.mistake()
    assert project.mistake().startswith("config.yaml: ")


def test_a_missing_file_is_named(project):
    (project.root / project.config).unlink()
    line = f"config.yaml: not in {project.root.resolve()}; run this in the folder of formerlab's checkout"
    assert project.mistake() == line


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"foo": 1}, "command line: foo: unknown key (value 1)"),
        ({"set": {"small.optimizer.lr": "1e-3"}}, "command line: set: small.runs.plain.optimizer.lr: '1e-3' is text"),
        ({"set": {"small.model.heads": 5}}, "command line: set: small.runs.plain.model: heads=5 does not divide"),
        ({"set": {"small.stepps": 5}}, "command line: set: small.stepps: unknown key (value 5); did you mean steps"),
        ({"set": {"small": 5}}, "command line: set: small: got 5; name a key below it, such as small."),
        ({"set": {"small.runs": 5}}, "command line: set: small.runs: got 5; name a run below it"),
        ({"set": {"small.runs.plain": 5}}, "command line: set: small.runs.plain: got 5; name a key below it"),
        ({"set": {"study.smal.title": "x"}}, "command line: set: study.smal: unknown key"),
        (
            {"set": {"study.small.titel": "x"}},
            "command line: set: study.small: titel: unknown key (value 'x'); did you",
        ),
        ({"set": {"overlay": "x"}}, "command line: set: overlay: unknown key (value 'x')"),
        ({"set": {"seeds": []}}, "command line: set: seeds: [] is empty"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_on_the_command_line_is_found_there(project, given, answer):
    message = project.mistake(**given)
    assert message.startswith(answer)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("small: {optimizer: {lrr: 1.0}}", "mine.yaml: small.runs.plain.optimizer.lrr: unknown key"),
        ("small.optimizer.lr: 1e-3", "mine.yaml: small.runs.plain.optimizer.lr: '1e-3' is text"),
        ("3: 4", "mine.yaml: 3: unknown key (value 4)"),
        ("[small]", "mine.yaml: got ['small']; write keys and values"),
        # Keys that reach the plan by way of other files, and what only does not fit what those say.
        ("data.text.valid_share: 2.0", "mine.yaml: data.text.valid_share: Input should be less than 0.5"),
        (
            "data.text: {source: {kind: files, paths: [none]}, questions: 0}",
            "mine.yaml: data.text: source.paths: no file",
        ),
        ("hardware.CPU.prize: 1.0", "mine.yaml: hardware.CPU.prize: unknown key"),
        ("suites.mine_local: {kind: files, paths: [none]}", "mine.yaml: suites.mine_local.paths: no file at 'none'"),
        ("results: /", "mine.yaml: results: '/' is no folder"),
        ("scale.defaults.steps: -1", "mine.yaml: scale: small.runs.plain.steps: Input should be greater than 0"),
        ("scale.studies.small.runs.plain.steps: -1", "mine.yaml: scale: small.runs.plain.steps: Input should be"),
        ("scale.studies.small.only: [plian]", "mine.yaml: scale: studies.small.only: 'plian' matches no run"),
        ("scale.studies.smal.only: [x]", "mine.yaml: scale: studies.smal: no such study; did you mean small?"),
        ("study.small.defaults.model.width: -1", "mine.yaml: study.small: small.runs.plain.model.width: Input should"),
        ("study.small.measure.prune.windows: 0", "mine.yaml: study.small: small.measure.prune.windows: Input should"),
        (
            "study.small.measure.speed: {runs: [plain], repetitions: 1}",
            "mine.yaml: study.small: small.measure.speed.repetitions: Input",
        ),
        ("study.small.measure.flow.windows: 0", "mine.yaml: study.small: small.measure.flow.windows: Input should"),
        ("small.model.context: 16", "mine.yaml: small.runs.plain: task.context=32 exceeds model.context=16"),
        ("small.runs.child.init: parnt", "mine.yaml: runs.child.init: 'parnt' does not exist"),
        (
            "small.runs.child.model.width: 32",
            "mine.yaml: runs.child.init: 'parent': cannot grow width=16 into",
        ),
    ],
)
def test_a_mistake_in_an_overlay_is_found_there(project, text, answer):
    project.write("mine.yaml", text)
    assert project.mistake(overlay="mine.yaml").startswith(answer)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("small.plain.optimizer.lr", "small.runs.plain.optimizer.lr"),
        ("small.deep-7.steps", "small.runs.deep-7.steps"),
        ("plain.steps", "small.runs.plain.steps"),
        ("small.lr", "small.optimizer.lr"),
        ("optimizer.lr", "small.optimizer.lr"),
        ("steps", "small.steps"),
        ("small.runs.plain.lr", "small.runs.plain.optimizer.lr"),
        ("small.model.steps", "small.runs.plain.steps"),
        ("small.measure.prune.windows", "study.small.measure.prune.windows"),
        ("scale.small.only", "scale.studies.small.only"),
        ("memory_mb", "scale.memory_mb"),
    ],
)
def test_a_natural_but_wrong_path_gets_a_hint(project, key, meant):
    message = project.mistake(set={key: 3})
    assert message.startswith("command line: set: ")
    assert message.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize("key", ["small.steps", "small.runs.plain.steps", "study.small.title"])
def test_what_belongs_below_set_gets_a_hint_too(project, key):
    study, _, rest = key.partition(".")
    project.lay_over(project.config, f"{study}: {{{rest}: 3}}")
    assert project.mistake().endswith(f"; did you mean set: {{{key}: ...}}?")


def test_a_mapping_merged_from_merged_mappings_has_no_key_twice(project):
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
    project.lay_over(project.scale, "studies: {small: null}")
    assert [project.run(name)["steps"] for name in ("first", "second", "third")] == [5, 6, 6]
