"""The JSON schema of config, studies and scales: every key with description, type, range and default.

It is for editors, and more lenient than the plan: a file gives some keys of a run and another file the rest, so nothing
is required of a part, and a number or a choice may be a field of the run's name.
"""

from typing import Any

from pydantic import create_model
from pydantic.json_schema import models_json_schema

from formerlab.data.registry import Data
from formerlab.evaluation.timing.equal_time import EqualTime
from formerlab.models import Model
from formerlab.plan.measure import settings_of
from formerlab.plan.schema import Config, Scale, SeedsOfRun, Study, StudyScale, Which
from formerlab.plan.sources import RELEASED_KEYS, RUN_KEYS
from formerlab.released import ReleasedModel
from formerlab.results.stages import MEASURED, TIMED
from formerlab.spec import Spec, variants
from formerlab.tasks import Task
from formerlab.training.optimizer import Optimizer
from formerlab.training.released import ReleasedRun
from formerlab.training.run import Run

Schema = dict[str, Any]

WHOLE = tuple(kind.__name__ for kind in (Config, Scale, Study, StudyScale))
"""Definitions that describe a file, or a section of one, in full."""
FIELD = {"type": "string", "pattern": r"^\{\w+\}$", "description": "A field of the run's name."}
NAME = {"type": "string", "pattern": r"\{\w+\}", "description": "A name with fields of the run's name in it."}
GRID = {
    "description": "Values of the fields in the run's name: lists of which all combinations run, or a list of points.",
    "anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}],
    "default": None,
}
SEEDS = {
    "description": "Seeds of the run, where they differ from its study's.",
    "default": None,
    "$ref": "#/$defs/SeedsOfRun/properties/seeds",
}
EQUAL_TIME = {
    "description": "Train as long as another run by the clock: the steps follow from measured speeds.",
    "default": None,
    "$ref": "#/$defs/EqualTime",
}
PARTS = {
    "runs": ("PartOfRun",),
    "data": tuple(kind.__name__ for kind in variants(Data)),
    "released": tuple(kind.__name__ for kind in variants(ReleasedModel)),
}
"""What the values of a mapping are, by its key."""
ANNOTATIONS = ("title", "description", "default")


def json_schema() -> Schema:
    """Return one schema with a definition for each kind of file; the schema itself is that of config.yaml."""
    of_kinds: list[tuple[type[Spec], frozenset[str]]] = [
        (Run, RUN_KEYS),
        (ReleasedRun, RELEASED_KEYS - Run.model_fields.keys()),
    ]
    fields: Any = {
        name: (field.annotation, field)
        for kind, keys in of_kinds
        for name, field in kind.model_fields.items()
        if name in keys
    }
    part = create_model("PartOfRun", __base__=Spec, __doc__="Some keys of a run.", **fields)
    settings = {name: settings_of(stage) for name, stage in (TIMED | MEASURED).items()}
    described: tuple[type[Spec], ...] = (Config, Scale, Study, part, EqualTime, SeedsOfRun, Which, *settings.values())
    kinds: list[tuple[type[Spec], Any]] = [(kind, "validation") for kind in described]
    _, schema = models_json_schema(kinds)
    definitions = schema["$defs"]
    for name, definition in definitions.items():
        _describe_kind(definition)
        if name not in WHOLE:
            definitions[name] = _part(definition)
    of_run = definitions["PartOfRun"]["properties"]
    of_run |= {"grid": GRID, "equal_time": EQUAL_TIME, "seeds": SEEDS}
    for key, union in (("model", Model), ("task", Task), ("optimizer", Optimizer)):  # another file may say the kind
        names = tuple(kind.__name__ for kind in variants(union))
        annotations = {name: of_run[key][name] for name in ANNOTATIONS if name in of_run[key]}
        of_run[key] = annotations | _one_of_kinds(names, definitions)
    of_which = definitions["Which"]["properties"]
    for kind in settings.values():
        definitions[kind.__name__]["properties"] |= of_which | {
            "by_run": of_which["by_run"] | {"additionalProperties": {"$ref": f"#/$defs/{kind.__name__}"}}
        }
    _fill_in_parts(definitions, {name: kind.__name__ for name, kind in settings.items()})
    title = {"title": "formerlab", "description": "config.yaml, and in $defs the files of workflow/{studies,scales}"}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", **title, "$ref": "#/$defs/Config"}
    return head | {"$defs": {"Field": FIELD, "FilledName": NAME, **definitions}}


def _describe_kind(definition: Schema) -> None:
    """Describe the literal `kind` of a variant by the first sentence about the variant."""
    if kind := definition["properties"].get("kind"):
        kind["description"] = definition["description"].split(". ")[0].replace("\n", " ").rstrip(".")


def _part(schema: Any) -> Any:
    """Return a schema that requires nothing and lets fields stand for numbers and choices."""
    if isinstance(schema, list):
        return [_part(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    annotations = {key: schema[key] for key in ANNOTATIONS if key in schema}
    rest = {key: value for key, value in schema.items() if key not in (*annotations, "required", "discriminator")}
    if rest.get("type") in ("integer", "number") or "enum" in rest:
        return annotations | {"anyOf": [rest, {"$ref": "#/$defs/Field"}]}
    if rest.get("type") == "string" and "pattern" in rest:
        return annotations | {"anyOf": [rest, {"$ref": "#/$defs/FilledName"}]}
    if "properties" in rest:
        properties = {name: _part(value) for name, value in rest.pop("properties").items()}
        annotations["properties"] = properties
    return annotations | {"anyOf" if key == "oneOf" else key: _part(value) for key, value in rest.items()}


def _fill_in_parts(definitions: Schema, settings: dict[str, str]) -> None:
    """Say what the mappings hold that only the plan reads in full."""
    for name in WHOLE:
        properties = definitions[name]["properties"]
        if "defaults" in properties:
            properties["defaults"] |= {"$ref": "#/$defs/PartOfRun"}
        if "measure" in properties:
            stages = {stage: {"$ref": f"#/$defs/{kind}"} for stage, kind in settings.items()}
            properties["measure"] |= {"properties": stages, "additionalProperties": False}
        for key, parts in PARTS.items():
            if key in properties:
                properties[key].pop("patternProperties", None)
                properties[key]["additionalProperties"] = _one_of_kinds(
                    parts, definitions, {"$ref": f"#/$defs/{parts[0]}"}
                )


def _one_of_kinds(names: tuple[str, ...], definitions: Schema, default: Schema | None = None) -> Schema:
    """Return the schema that the key `kind` chooses, so that errors keep their places; without it, the default's."""
    if len(names) == 1:
        return {"$ref": f"#/$defs/{names[0]}"}
    kinds = {name: definitions[name]["properties"]["kind"]["const"] for name in names}
    known = {"properties": {"kind": {"enum": list(kinds.values())}}, "required": ["kind"]}
    chosen = [
        {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": {"$ref": f"#/$defs/{name}"}}
        for name, kind in kinds.items()
    ]
    silent = default or {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    return {"allOf": [*chosen, {"if": {"not": known}, "then": silent}]}
