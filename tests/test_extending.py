"""docs/extending.md is right: its blocks, put into a copy of the repository's files, work."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/extending.md").read_text()
BLOCKS = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
RUNS = [yaml.safe_load(block)["runs"] for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]

USE = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch
from fixtures.rows import make_run

from formerlab.cache import Peak, PrunedCache, Simulation
from formerlab.data import TextData, load_stream, prepare
from formerlab.data.sums import Sums
from formerlab.report.drawings import draw_one
from formerlab.layers.anchor import Anchor
from formerlab.layers.low_rank import LowRank
from formerlab.models import Decoder
from formerlab.plan.build import build_plan
from formerlab.training.run import Run

plan = build_plan(Path.cwd(), {"scale": "smoke", "data": {"text": {"source": {"kind": "sums"}, "questions": 0}}})
for name in ("transformer-swiglu", "swiglu-1", "swiglu-2"):
    run = Run.model_validate(plan["train"][f"tokenformer/{name}/seed0"]["spec"])
    assert run.model.feedforward.activation == "swiglu", name

spec = Decoder(layers=2, width=16, heads=2, vocabulary=20, projection=LowRank(rank=4), depth=Anchor())
model = spec.build(seed=1).eval()
assert sum(parameter.numel() for parameter in model.parameters()) == spec.params()
tokens = torch.randint(20, (1, 12), generator=torch.Generator().manual_seed(0))
model(tokens).mean().backward()
assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
assert model.mixer.weights() == [(1, 0, 0.0), (2, 0, 0.0)]

with torch.no_grad():
    simulated = model(tokens, attend=Simulation(Peak(), 4))
    cache = PrunedCache(Peak(), 4)
    stepped = torch.cat([model(tokens[:, [i]], attend=cache, start=i) for i in range(12)], dim=1)
torch.testing.assert_close(simulated, stepped)

prepare("text", TextData.model_validate(plan["data"]["text"]["spec"]), Path("data"), processes=1)
assert len(load_stream(Path("data"), "train")) > 1000

root = Path("results/live/smoke")
for layers in (2, 4):
    make_run(root, "denseformer", f"plain-{layers}")
assert len(draw_one("denseformer_pace", root, Path("figures"))) == 4
assert "denseformer_pace" in plan["draw"]
"""


def put(root, name, code):
    """Write a new file, or into an existing one the block's imports and, over that of the same name, its union."""
    path = root / name
    if not path.exists():
        path.write_text(code)
        return
    text = path.read_text()
    imported, assigned = code.strip().split("\n\n")
    (present,) = re.findall(rf"^{assigned.split(' = ')[0]} = (?:Annotated\[\n(?:.*\n)*?\]|.*)$", text, re.MULTILINE)
    assert set(re.findall(r"\w+", assigned)) - set(re.findall(r"\w+", present)) == {imported.split()[-1]}
    assert len(assigned.split("|")) == len(present.split("|")) + 1
    path.write_text(text.replace(present, assigned).replace("from formerlab.", f"{imported}\nfrom formerlab.", 1))


def test_the_page_says_for_every_kind_of_part_what_to_write():
    assert len(BLOCKS) == 9
    assert [name for name, _ in BLOCKS if (ROOT / name).exists()] == [
        "src/formerlab/layers/projection.py",
        "src/formerlab/layers/depth/union.py",
        "src/formerlab/cache/__init__.py",
        "src/formerlab/data/text/spec.py",
    ]


@pytest.mark.slow
def test_its_blocks_work(tmp_path):
    for name in ("src", "workflow"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "config.yaml", tmp_path)
    for name, code in BLOCKS:
        put(tmp_path, name, code)
    study = tmp_path / "workflow/studies/tokenformer.yaml"
    tree = yaml.safe_load(study.read_text())
    for runs in RUNS:
        tree["runs"] |= runs
    study.write_text(yaml.safe_dump(tree, sort_keys=False))
    scale = tmp_path / "workflow/scales/smoke.yaml"
    tree = yaml.safe_load(scale.read_text())
    tree["studies"]["tokenformer"]["only"] = ["*swiglu*"]
    tree["studies"]["tokenformer"].pop("zeroshot", None)
    scale.write_text(yaml.safe_dump(tree, sort_keys=False))
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", USE, str(ROOT / "tests")]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figures/denseformer_pace.png").stat().st_size > 1000
