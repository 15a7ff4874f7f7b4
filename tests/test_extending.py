"""The code blocks of CONTRIBUTING.md and docs/extending.md work in a copy of the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
import yaml
from fixtures.checkout import Checkout

from formerlab.plan.build import build_plan
from formerlab.results.stages import MEASURED

ROOT = Path(__file__).parents[1]
TEXT = "".join((ROOT / name).read_text() for name in ("CONTRIBUTING.md", "docs/extending.md"))
UNIONS = re.findall(r"union `(\w+)` in `(src/\S+\.py)`", TEXT)
BLOCKS = re.findall(r"^```python\n# (\S+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
YAML = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)]
RUNS = [block["runs"] for block in YAML if "runs" in block]
(MEASURE,) = [block["measure"] for block in YAML if "measure" in block]
LAST_STAGE = '    Stage("exact",'

USE = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch
from fixtures.rows import draw_one, make_run

from formerlab.cache import Peak, PrunedCache, Simulation
from formerlab.layers.depth.anchor import Anchor
from formerlab.models import Decoder
from formerlab.plan.build import build_plan
from formerlab.training.run import Run

plan = build_plan(Path.cwd(), {"scale": "smoke"})
for name in ("transformer-swiglu", "swiglu-1", "swiglu-2"):
    run = Run.model_validate(plan["train"][f"tokenformer/{name}/seed0"]["spec"])
    assert run.model.feedforward.activation == "swiglu", name

spec = Decoder(layers=2, width=16, heads=2, vocabulary=20, depth=Anchor())
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

root = Path("results/live/smoke")
for layers in (2, 4):
    make_run(root, "denseformer", f"plain-{layers}")
assert len(draw_one("denseformer_pace", root, Path("figures"))) == 4
assert any("denseformer_pace" in job["entries"] for job in plan["draw"].values())
"""


def add_block(root, name, code):
    """Write a new file, or insert an entry before the last stage of the table of stages."""
    path = root / name
    if code.startswith("Stage("):
        entry = textwrap.indent(f"{code.strip()},\n", 4 * " ")
        code = path.read_text().replace(LAST_STAGE, entry + LAST_STAGE, 1)
    path.write_text(code)


NEW_CLASSES = ("formerlab.layers.depth.anchor", "Anchor"), ("formerlab.cache.policies.peak", "Peak")


def add_to_unions(root):
    """Add the mixer and the policy to their unions, with their imports."""
    for (union, file), (module, name) in zip(UNIONS, NEW_CLASSES, strict=True):
        text = (root / file).read_text()
        text, count = re.subn(rf"^({union} = Annotated\[\s*)", rf"\g<1>{name}\n    | ", text, flags=re.MULTILINE)
        assert count == 1
        (root / file).write_text(text.replace("from formerlab.", f"from {module} import {name}\nfrom formerlab.", 1))


def copy_of_the_repository(root, *names):
    """Copy files and folders of the repository."""
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, root)


def run_python(root, *words):
    """Run Python with the package in a copy of the repository, and return its output."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_code_blocks_work(tmp_path):
    copy_of_the_repository(tmp_path, "src", "workflow", "config.yaml")
    for name, code in BLOCKS:
        add_block(tmp_path, name, code)
    add_to_unions(tmp_path)
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
    run_python(tmp_path, "-c", USE, str(ROOT / "tests"))
    assert (tmp_path / "figures/denseformer_pace.png").stat().st_size > 1000


PARAMETRISED_TESTS = (
    *("tests/cache/test_policies.py", "tests/cache/test_caches.py", "tests/cache/test_compressed.py"),
    *("tests/layers/test_depth.py", "tests/test_formulas.py", "tests/figures/test_names.py"),
)
"""Tests that are parametrised over all mixers and policies."""


@pytest.mark.slow
def test_parametrised_tests_pass_with_a_new_mixer_and_policy(tmp_path):
    """Follow the pages: add the blocks, sort the imports, and write the page of formulas."""
    copy_of_the_repository(tmp_path, "src", "tests", "docs", "scripts", "pyproject.toml", "README.md")
    for name, code in BLOCKS:
        if "/depth/" in name or "/cache/" in name:
            add_block(tmp_path, name, code)
    add_to_unions(tmp_path)
    chosen = "Peak or peak or Anchor or anchor or registry or the_page or names_are"
    for words in (
        ("-m", "ruff", "check", "--fix", "src"),
        ("-m", "ruff", "format", "--check", "src"),
        ("scripts/write_formulas.py",),
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *PARAMETRISED_TESTS),
    ):
        run_python(tmp_path, *words)
    assert "Anchor" in (tmp_path / "docs/formulas.md").read_text()


RUN = "decay/decoder/seed0"
SMALL = """
studies: [decay]
tracking_uri: ""
scale.data.text.questions: 0
decay: {steps: 4, evaluate_every: 2, log_every: 2}
"""


@pytest.mark.slow
def test_a_new_measurement_needs_one_module_and_one_entry(tmp_path):
    """The two code blocks of docs/extending.md and a study with the new measurement work in plan, DAG and results."""
    checkout = Checkout(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL)
    checkout.edit("config.yaml", "scale: laptop", "scale: smoke\noverlay: small.yaml")
    original_plan = build_plan(tmp_path, {})
    blocks = [(name, code) for name, code in BLOCKS if "confidence" in code]
    assert len(blocks) == 2
    for name, code in blocks:
        add_block(tmp_path, name, code)
    study = tmp_path / "workflow/studies/decay.yaml"
    tree = yaml.safe_load(study.read_text())
    tree["measure"] |= MEASURE
    study.write_text(yaml.safe_dump(tree, sort_keys=False))
    record = f"{original_plan['results']}/{RUN}/confidence.json"
    result = checkout.snakemake("--cores", "1", record)
    assert result.returncode == 0, result.stderr
    (path,) = (tmp_path / ".formerlab/plans").glob("*.json")
    plan = json.loads(path.read_text())
    assert plan["confidence"][RUN]["settings"] == {"windows": 8}
    for stage in ("data", "train", *MEASURED):  # a new stage makes no existing output stale
        assert {name: job["code"] for name, job in plan[stage].items()} == {
            name: job["code"] for name, job in original_plan[stage].items()
        }
    rows = pd.read_csv((tmp_path / record).with_suffix(".csv"))
    assert list(rows.columns) == ["window", "entropy_nats"]
    assert (len(rows), rows["entropy_nats"].min() > 0) == (8, True)
    checkout.edit("src/formerlab/evaluation/language/confidence.py", "log_softmax(-1)", "log_softmax(dim=-1)")
    assert checkout.to_do(record) == {f"confidence {RUN}"}


def test_a_new_figure_of_an_existing_kind_has_under_25_lines():
    (block,) = [text for path, text in BLOCKS if "/report/figures/" in path]
    assert block.count("@plot(") == 1
    assert len(block.splitlines()) < 25


NEW_STUDY = """
title: Own
paper: arXiv:9999.00001
question: Does it train?
defaults: {model: {projection: {kind: linear}}}
runs: {plain: {}}
"""
NEW_FIGURE = '''
"""Figures of the study `own`."""

from formerlab.report.catalogue import plot


@plot(reads="eval.csv")
def own_end(results, runs):
    """Loss."""
    return results.rows("eval.csv", "own", runs)
'''
NEW_SCALE = """
description: as smoke, smaller
evidence: true
labels: {text: docstrings}
"""
USE_NEW_STUDY = """
import json
from pathlib import Path

from formerlab.plan.build import build_plan
from formerlab.report.committed import is_committed
from formerlab.report.catalogue import catalogue
from formerlab.report.names import data_set_label

plan = build_plan(Path.cwd(), {"scale": "own", "studies": ["own"]})
committed = [is_committed(Path.cwd(), catalogue()["own_end"], scale) for scale in ("own", "smoke")]
default = list(build_plan(Path.cwd(), {"scale": "smoke"})["studies"])
figures = sorted(name for job in plan["draw"].values() for name in job["entries"])
print(json.dumps([sorted(plan["train"]), figures, committed, data_set_label("text", None, "own"), default]))
"""


@pytest.mark.slow
def test_a_new_study_needs_three_files_and_a_new_scale_one(tmp_path):
    """A study needs its file, the module of its figure, and an entry in a scale. It is registered nowhere else."""
    copy_of_the_repository(tmp_path, "src", "workflow", "config.yaml")
    (tmp_path / "workflow/studies/own.yaml").write_text(NEW_STUDY)
    (tmp_path / "src/formerlab/report/figures/own.py").write_text(NEW_FIGURE.lstrip())
    smoke = yaml.safe_load((tmp_path / "workflow/scales/smoke.yaml").read_text())
    smoke["studies"]["own"] = {}
    (tmp_path / "workflow/scales/smoke.yaml").write_text(yaml.safe_dump(smoke))
    smoke |= yaml.safe_load(NEW_SCALE)
    (tmp_path / "workflow/scales/own.yaml").write_text(yaml.safe_dump(smoke))
    runs, figures, committed, label, default_studies = json.loads(run_python(tmp_path, "-c", USE_NEW_STUDY))
    assert runs == ["own/plain/seed0"]
    assert figures == ["own_end"]
    assert committed == [True, False]
    assert label == "docstrings"
    assert default_studies[-1] == "own", "studies are in the order of their papers, and a new study is last"
