"""Priority of configuration files, replacement of mappings of another kind, and equivalent ways to write a key."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from formerlab.plan.merging import Tree, fill, merge

LAYERS = {
    "scale": ("workflow/scales/smoke.yaml", "defaults: {{steps: {}}}"),
    "study": ("workflow/studies/small.yaml", "defaults: {{steps: {}}}"),
    "scale of the study": ("workflow/scales/smoke.yaml", "studies: {{small: {{defaults: {{steps: {}}}}}}}"),
    "run": ("workflow/studies/small.yaml", "runs: {{plain: {{steps: {}}}}}"),
    "pattern": ("workflow/scales/smoke.yaml", "studies: {{small: {{runs: {{'pl*': {{steps: {}}}}}}}}}"),
    "run at the scale": ("workflow/scales/smoke.yaml", "studies: {{small: {{runs: {{plain: {{steps: {}}}}}}}}}"),
    "config": ("config.yaml", "small: {{steps: {}}}"),
    "config of the run": ("config.yaml", "small: {{runs: {{plain: {{steps: {}}}}}}}"),
    "overlay": ("mine.yaml", "small.steps: {}"),
    "overlay of the run": ("mine.yaml", "small.runs.plain.steps: {}"),
    "set": ("config.yaml", "set: {{small.steps: {}}}"),
    "set of the run": ("config.yaml", "set: {{small.runs.plain.steps: {}}}"),
    "set of the overlay": ("mine.yaml", "set: {{small: {{runs: {{plain: {{steps: {}}}}}}}}}"),
}
"""The files that can set a key of a run, in order of increasing priority."""

leaves = st.dictionaries(st.sampled_from("xy"), st.integers() | st.none())
trees = st.recursive(
    leaves, lambda inner: st.builds(dict.__or__, leaves, st.dictionaries(st.sampled_from("ab"), inner)), max_leaves=6
)
"""Strategy for trees in which the keys x and y have values, and a and b have mappings."""


@pytest.mark.parametrize("height", range(1, len(LAYERS) + 1))
def test_more_specific_settings_override_general_settings(project, height):
    project.write("mine.yaml", "{}")
    project.merge_into("config.yaml", "overlay: mine.yaml")
    for name, (file, text) in list(LAYERS.items())[:height]:
        project.merge_into(file, text.format(1000 + list(LAYERS).index(name)))
    assert project.run()["steps"] == 1000 + height - 1
    assert project.run(set={"small.runs.plain.steps": 7})["steps"] == 7


def test_the_name_of_a_run_overrides_its_template_and_patterns(project):
    project.merge_into(project.study, "runs: {'wide-{steps}': {init: null}}")
    runs = (
        "{wide-7: {seeds: [0, 1]}, 'wide-{steps}': {grid: {steps: [7, 8]}, seeds: [0], steps: 5}, 'wide-*': {steps: 3}}"
    )
    project.merge_into(project.scale, f"studies: {{small: {{runs: {runs}}}}}")
    trained = project.plan()["train"]
    assert [name for name in trained if "wide" in name] == [
        "small/wide-7/seed0",
        "small/wide-7/seed1",
        "small/wide-8/seed0",
    ]
    assert {trained[name]["spec"]["steps"] for name in trained if "wide" in name} == {5}


def test_a_mapping_of_another_kind_replaces_the_base(project):
    x = Tree({"a": {"kind": "x", "p": 1}})
    assert merge(x, Tree({"a": {"kind": "y", "q": 2}})) == {"a": {"kind": "y", "q": 2}}
    assert merge(x, Tree({"a": {"kind": "x", "q": 2}})) == {"a": {"kind": "x", "p": 1, "q": 2}}
    assert merge(Tree({"a": {"p": 1}}), Tree({"a": {"kind": "x"}})) == {"a": {"p": 1, "kind": "x"}}
    project.merge_into(project.scale, "studies: {small: {only: [parent]}}")
    assert project.run("parent")["model"]["projection"]["tokens"] == 8  # a key that a linear projection does not have
    changed = project.run("parent", set={"small.model.projection": {"kind": "linear", "bias": True}})
    assert changed["model"]["projection"] == {"kind": "linear", "bias": True, "std": 0.02, "scale_residual": True}


@pytest.mark.parametrize(
    ("base", "overrides", "remaining_keys"),
    [
        ({"paths": ["own.txt"]}, {"train": ["a.txt"], "test": ["b.txt"]}, {"train", "test"}),
        ({"train": ["a.txt"], "valid": ["b.txt"]}, {"paths": ["own.txt"]}, {"paths"}),
        ({"train": ["a.txt"], "valid": ["b.txt"]}, {"train": ["own.txt"]}, {"train", "valid"}),
    ],
)
def test_paths_and_splits_replace_each_other(project, base, overrides, remaining_keys):
    for name in ("own.txt", "a.txt", "b.txt"):
        project.write(name, name)
    base, overrides = (
        {key: [str(project.root / name) for name in names] for key, names in layer.items()}
        for layer in (base, overrides)
    )
    text = {"source": {"kind": "files"} | base, "questions": 0}
    project.merge_into("config.yaml", yaml.safe_dump({"data": {"text": text}}))
    project.write("mine.yaml", yaml.safe_dump({"data.text.source": overrides}))
    source = project.plan(overlay="mine.yaml")["data"]["text"]["spec"]["source"]
    assert {key for key in ("paths", "train", "valid", "test") if source[key]} == remaining_keys


def test_a_data_set_of_another_kind_replaces_the_base(project):
    """A data set without `kind` is text. Image keys that are merged over it replace all of its keys."""
    plan_before = project.plan(data={"pictures": {"source": {"kind": "embedded"}, "questions": 3}})
    images = {"kind": "images", "source": {"kind": "digits"}}
    project.merge_into(project.scale, "data: {pictures: {source: {kind: embedded}, questions: 3}}")
    assert project.plan(data={"pictures": images})["train"] == plan_before["train"]


@given(st.tuples(trees, trees, trees))
def test_merging_is_associative_records_the_file_of_each_key_and_changes_no_argument(given):
    a, b, c = (Tree(tree, file) for tree, file in zip(given, "abc", strict=True))
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, Tree()) == merge(Tree(), a) == a
    assert [a, b, c] == list(given)
    for key, value in merge(merge(a, b), c).items():
        file = merge(merge(a, b), c).file_of(key)
        assert file == max(name for name, tree in zip("abc", given, strict=True) if key in tree)
        assert isinstance(value, dict) or given["abc".index(file)][key] == value


OVERRIDES = [
    ("small.optimizer.lr", 0.5, "defaults: {optimizer: {lr: 0.5}}", "workflow/scales/smoke.yaml"),
    ("small.runs.plain.model.heads", 4, "runs: {plain: {model: {heads: 4}}}", "workflow/studies/small.yaml"),
    (
        "study.small.measure.zeroshot.runs",
        ["parent"],
        "measure: {zeroshot: {runs: [parent]}}",
        "workflow/studies/small.yaml",
    ),
    (
        "scale.data.text.tokenizer.vocabulary",
        301,
        "data: {text: {tokenizer: {vocabulary: 301}}}",
        "workflow/scales/smoke.yaml",
    ),
    ("data.text.questions", 0, "data: {text: {questions: 0}}", "config.yaml"),
]


@pytest.mark.parametrize(("key", "value", "text", "file"), OVERRIDES, ids=[key for key, *_ in OVERRIDES])
def test_all_ways_to_set_a_key_are_equivalent(project, key, value, text, file):
    """A key may be in or outside `set`, in config.yaml, an overlay, the command line, or the edited file."""
    plan_before = project.plan()
    on_command_line = project.plan(set={key: value})
    assert on_command_line != plan_before
    config = (project.root / "config.yaml").read_text()
    for layer in ({key: value}, {"set": {key: value}}):
        assert project.plan(**layer) == on_command_line
        project.write("mine.yaml", yaml.safe_dump(layer))
        assert project.plan(overlay="mine.yaml") == on_command_line
        project.merge_into("config.yaml", yaml.safe_dump(layer))
        assert project.plan() == on_command_line
        project.write("config.yaml", config)
    project.merge_into(file, text)
    assert project.plan() == on_command_line


def test_the_scale_of_the_command_line_overrides_files(project):
    """The command line also overrides files that contain `scale: {...}`."""
    scale = project.plan()["scale"]
    project.write("mine.yaml", "scale: laptop")
    assert project.plan(overlay="mine.yaml", scale=scale)["scale"] == scale
    project.merge_into("config.yaml", "scale: null")
    project.write("mine.yaml", "scale: {defaults: {steps: 77}}")
    assert project.plan(overlay="mine.yaml", scale=scale) == project.plan(scale=scale, set={"scale.defaults.steps": 77})


def test_a_text_that_is_one_field_keeps_the_type_of_its_value():
    point = {"n": 3, "x": 0.5, "on": True}
    tree = {"layers": "{n}", "rate": "{x}", "flag": "{on}", "text": "n={n}", "list": ["{n}", "plain"]}
    filled = {"layers": 3, "rate": 0.5, "flag": True, "text": "n=3", "list": [3, "plain"]}
    assert fill(tree, point) == filled
    assert [type(value) for value in fill(tree, point).values()] == [type(value) for value in filled.values()]


def test_an_overlay_can_define_a_sweep_of_learning_rates(project):
    project.merge_into(project.scale, "studies: {small: {only: [plain]}}")
    sweep = '{study: {small: {runs: {"mine-{lr}": {grid: {lr: [1.0e-3, 2.5e-4, 3.0]}, optimizer: {lr: "{lr}"}}}}}}'
    project.write("mine.yaml", sweep)
    runs = project.plan(overlay="mine.yaml", seeds=[0])["train"]
    rates = {job["run"]: job["spec"]["optimizer"]["lr"] for job in runs.values()}
    del rates["plain"]
    assert rates == {"mine-1e-3": 1.0e-3, "mine-25e-5": 2.5e-4, "mine-3": 3.0}
