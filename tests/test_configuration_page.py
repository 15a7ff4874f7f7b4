"""The page of the configuration lists every key of every schema with its default and meaning."""

import sys
from pathlib import Path

MEANING = "Name of a file in workflow/scales."
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import stage_docs  # noqa: E402

from formerlab.plan.schema import Config, Scale  # noqa: E402


def test_every_key_has_its_default_and_its_meaning():
    rows = [line.strip("| ").split(" | ") for line in stage_docs.configuration().splitlines() if line.startswith("| `")]
    by_key = {row[0].strip("`"): row for row in reversed(rows)}
    assert by_key["scale"] == ["`scale`", '`"laptop"`', "str", MEANING]
    assert by_key["data"][0:2] in (["`data`", "required"], ["`data`", "`{}`"], ["`data`", '`"text"`'])
    for spec in (Config, Scale):
        assert {*spec.model_fields} <= {*by_key}
        assert all(stage_docs._meanings(spec)[name] for name in spec.model_fields)
    assert {"heads", "lr", "warmup", "batch", "context"} <= {*by_key}
