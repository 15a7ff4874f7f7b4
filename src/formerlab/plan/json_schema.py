"""The JSON schema of config, studies and scales: every key with description, type, range and default."""

from typing import Any

from pydantic import create_model
from pydantic.json_schema import models_json_schema

from formerlab.evaluation.prune import PruneSweep
from formerlab.plan.schema import Config, Scale, Study
from formerlab.run import Run
from formerlab.spec import Spec


def json_schema() -> dict[str, Any]:
    """Return one schema with a definition for each kind of file; `Config` is that of config.yaml.

    A run in a study or scale gives some keys of a run, so its mappings are described by the schema of `Run` without
    required keys.
    """
    part = create_model("PartOfRun", __base__=Spec, **{n: (f.annotation, f) for n, f in Run.model_fields.items()})  # type: ignore[call-overload]
    kinds: list[tuple[type[Spec], Any]] = [(kind, "validation") for kind in (Config, Scale, Study, part, PruneSweep)]
    _, schema = models_json_schema(
        kinds, title="formerlab", description="config.yaml and workflow/{studies,scales}/*.yaml"
    )
    definitions = schema["$defs"]
    definitions["PartOfRun"].pop("required", None)
    definitions["PartOfRun"]["properties"]["grid"] = {"description": "Values of the fields in the run's name."}
    for name in ("Study", "Scale", "StudyScale"):
        properties = definitions[name]["properties"]
        properties["defaults"] = {"$ref": "#/$defs/PartOfRun", "description": "Keys of every run."}
        if "runs" in properties:
            properties["runs"]["additionalProperties"] = {"$ref": "#/$defs/PartOfRun"}
        if "prune" in properties:
            properties["prune"]["additionalProperties"] = {"$ref": "#/$defs/PruneSweep"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$ref": "#/$defs/Config"}
