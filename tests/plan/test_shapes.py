"""At scale workstation, models have sizes that are efficient on tensor cores."""

from pathlib import Path

import pytest

from formerlab.plan.build import build_plan

ROOT = Path(__file__).parents[2]
SIZES = {"width", "hidden", "tokens", "vocabulary"}
BATCH_LIMITS = {"task.tokens"}
"""Keys that are upper limits for a batch."""


def sizes(value, path=""):
    """Yield every size of a spec with the path of its key."""
    for key, inner in value.items():
        key_path = f"{path}.{key}" if path else key
        if isinstance(inner, dict):
            yield from sizes(inner, key_path)
        elif key in SIZES and isinstance(inner, int) and key_path not in BATCH_LIMITS:
            yield key_path, inner


@pytest.fixture(scope="module")
def runs():
    return build_plan(ROOT, {"scale": "workstation", "tracking_uri": ""})["train"]


def test_every_size_at_workstation_is_a_multiple_of_64(runs):
    other_sizes = {
        f"{job['study']}/{job['run']}: {key}={size}"
        for job in runs.values()
        for key, size in sizes(job["spec"])
        if size % 64
    }
    assert not other_sizes


def test_matched_tokenformers_have_the_parameters_of_their_transformer(runs):
    def block(spec):
        model = spec["model"]
        return 8 * model["projection"]["tokens"] + 2 * model["feedforward"]["tokens"]

    for name in ("decay/decoder-tokenformer", "vision/tokenformer-matched"):
        spec = runs[f"{name}/seed0"]["spec"]
        assert block(spec) == 12 * spec["model"]["width"], name
