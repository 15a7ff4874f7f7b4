"""The JSON schema that editors check the YAML files with."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from formerlab.plan.json_schema import WHOLE, json_schema

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()
DEFINITIONS = SCHEMA["$defs"]
KEYS = [(name, key) for name in DEFINITIONS for key in DEFINITIONS[name].get("properties", ())]


def entry(name, key):
    return DEFINITIONS[name]["properties"][key]


def problems(kind, tree):
    """Return where a tree does not fit a definition."""
    validator = jsonschema.Draft202012Validator({"$defs": DEFINITIONS, "$ref": f"#/$defs/{kind}"})
    return [".".join(map(str, error.path)) for error in validator.iter_errors(tree)]


def test_the_committed_schema_is_up_to_date():
    committed = json.loads((ROOT / "workflow/config.schema.json").read_text())
    assert committed == SCHEMA, "run `python -m formerlab schema`"


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def numbers(schema, place=""):
    """Yield every place at which a number stands, with its schema."""
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number"):
            yield place, schema
        for key, part in schema.items():
            yield from numbers(part, f"{place}.{key}")
    elif isinstance(schema, list):
        for part in schema:
            yield from numbers(part, place)


def test_no_number_is_without_end():
    ends = {"maximum", "exclusiveMaximum", "const", "enum"}, {"minimum", "exclusiveMinimum", "const", "enum"}
    found = list(numbers(DEFINITIONS))
    assert len(found) > 100
    assert [place for place, schema in found if not all(end & schema.keys() for end in ends)] == []


def test_every_key_has_a_description():
    assert [key for key in KEYS if len(entry(*key)["description"]) < 5] == []


def test_every_key_has_a_default_or_must_be_given():
    must = {("PartOfRun", "model"), ("TokenizerOf", "data"), ("LocalSuite", "paths"), ("HarnessSuite", "task")}
    must |= {("Hub", "name"), *(("TokenizerFile", key) for key in ("path", "vocabulary"))}
    must |= {("EqualTime", key) for key in ("arm", "reference")}
    must |= {("HubPairs", key) for key in ("name", "source", "target")}
    must |= {("LinePairs", key) for key in ("train", "source", "target")}
    must |= {("ImageFolders", "train"), ("ImageHub", "name")}
    must |= {("PartOfRun", "released"), ("ReleasedTokenizer", "model"), ("Folder", "path"), ("HubModel", "name")}
    must |= {("Sizes", key) for key in ("layers", "width", "vocabulary", "context", "parameters")}
    required = {(name, key) for name in DEFINITIONS for key in DEFINITIONS[name].get("required", ())}
    assert {key for key in KEYS if "default" not in entry(*key)} == must | required


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Config", ROOT / "config.yaml"),
        *(("Scale", path) for path in sorted((ROOT / "workflow/scales").glob("*.yaml"))),
        *(("Study", path) for path in sorted((ROOT / "workflow/studies").glob("*.yaml"))),
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_the_files_of_the_repository_fit(kind, path):
    text = path.read_text()
    assert problems(kind, yaml.safe_load(text)) == []
    first = text.splitlines()[0]
    target = "workflow/config.schema.json" if kind == "Config" else f"../config.schema.json#/$defs/{kind}"
    assert first == f"# yaml-language-server: $schema={target}"


def test_the_files_of_the_small_project_fit(project):
    for kind, file in (("Config", project.config), ("Scale", project.scale), ("Study", project.study)):
        assert problems(kind, yaml.safe_load((project.root / file).read_text())) == []


@pytest.mark.parametrize(
    ("kind", "text", "where"),
    [
        ("Config", "scal: laptop", ""),
        ("Config", "scale: laptopp", "scale"),
        ("Config", "seeds: []", "seeds"),
        ("Config", "data: {text: {valid_share: 0.9}}", "data.text.valid_share"),
        ("Study", "title: x", ""),
        ("Study", "{title: x, paper: x, question: x, runs: {a: {stepps: 3}}}", "runs.a"),
        ("Study", "{title: x, paper: x, question: x, runs: {a: {name: b}}}", "runs.a"),
        ("Study", "{title: x, paper: x, question: x, runs: {a: {steps: many}}}", "runs.a.steps"),
        ("Study", "{title: x, paper: x, question: x, runs: {a: {optimizer: {lr: 1e-3}}}}", "runs.a.optimizer"),
        (
            "Study",
            "{title: x, paper: x, question: x, runs: {a: {model: {kind: decoder, depth: {kind: dwaa}}}}}",
            "runs.a.model.depth",
        ),
        ("Study", "{title: x, paper: x, question: x, runs: {a: {model: {depth: {kind: dwaa}}}}}", "runs.a.model"),
        ("Study", "{title: x, paper: x, question: x, runs: {}, measure: {prune: {budget: [1]}}}", "measure.prune"),
        ("Scale", "{description: x, data: {}, defaults: {steps: 0}}", "defaults.steps"),
        ("Scale", "{description: x, data: {}, studies: {a: {onlyy: [b]}}}", "studies.a"),
    ],
)
def test_mistakes_do_not_fit(kind, text, where):
    assert where in problems(kind, yaml.safe_load(text))


@pytest.mark.parametrize(
    "run",
    [
        "model: {projection: {tokens: 8}}",
        "model: {norm: {gain: false}}",
        "model: {layers: '{layers}', depth: {kind: dwa, period: '{period}'}}",
        "grid: {layers: [3, 4]}",
        "grid: [{layers: 3, period: 1}]",
        "growth: null",
    ],
)
def test_parts_of_runs_fit(run):
    tree = {"title": "x", "paper": "x", "question": "x", "runs": {"a": yaml.safe_load(run)}}
    assert problems("Study", tree) == []


def test_whole_files_say_what_must_be_there():
    assert {name for name in DEFINITIONS if "required" in DEFINITIONS[name]} == {"Scale", "Study"} <= set(WHOLE)
