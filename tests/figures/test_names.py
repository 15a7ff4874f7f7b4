"""A new mixer, projection or policy gets its label and plot style in figures and tables only from names.yaml."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import formerlab
from formerlab.cache import CachePolicy
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.projection import Projection
from formerlab.report.names import kind_label, variant_styles
from formerlab.report.tables.blocks import by_regime
from formerlab.report.write import with_labels
from formerlab.spec import variants

SPEC = '''
from typing import Literal

from formerlab.spec import Spec


class {name}(Spec):
    """Nothing yet."""

    kind: Literal["{kind}"] = "{kind}"
    rank: int = 1
'''
NEW = {
    "Skip": (
        "mixer",
        "layers/depth/union.py",
        r"DepthMixer = Annotated\[\s*",
        "skip",
        "Skips of rank {rank}",
        "#123456",
    ),
    "LowRank": (
        "projection",
        "layers/projection.py",
        r"Projection = Annotated\[",
        "low_rank",
        "Low rank {rank}",
        "#234567",
    ),
    "Peak": ("policy", "cache/__init__.py", r"CachePolicy = Annotated\[\s*", "peak", "Peak attention", "#345678"),
}
USE = """
import json, shutil, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import pandas as pd
from fixtures.rows import draw_one, make_decay, make_denseformer_study, make_run, make_tokenformer, make_vision, model

from formerlab.files import write_text
from formerlab.report import write
from formerlab.report.style import plot_style

write.save = lambda figure, *paths: [write_text(path, "drawn, and not saved") for path in paths]

def repeat(path, old, new):
    text = path.read_text()
    lines = [line.replace(old, new) + "\\n" for line in text.splitlines() if old in line]
    path.write_text(text + "".join(lines))


root = Path("results/live/new")
make_denseformer_study(root, (0,))
make_run(root, "denseformer", "mine-16", loss=4.0, spec=model(16, depth={"kind": "skip", "rank": 3}))
repeat(root / "denseformer/speed.csv", "gains-16", "mine-16")
make_tokenformer(root, (0,))
low = {"kind": "low_rank", "rank": 8}
make_run(root, "tokenformer", "mine", loss=4.0, spec=model(projection=low))
make_vision(root, (0,))


shutil.copytree(root / "vision/vit/seed0", root / "vision/mine/seed0")
path = root / "vision/mine/seed0/run.json"
record = json.loads(path.read_text())
record |= {"id": "vision/mine/seed0", "run": "mine"}
record["spec"]["model"]["projection"] = low
path.write_text(json.dumps(record))
make_decay(root)
for path in (root / "decay").rglob("*.csv"):
    repeat(path, "spatten", "peak")

make_run(root, "denseformer", "own-16", loss=4.0, spec=model(16, depth={"kind": "dwa", "dilation": 3, "period": 1}))
for name in ("denseformer_depth", "denseformer_sparsity", "denseformer_architecture"):
    draw_one(name, root, Path("figures"))
    assert "3x1" in Path(f"figures/{name}.csv").read_text() or "own-16" in Path(f"figures/{name}.csv").read_text(), name
make_run(root, "tokenformer", "own", loss=4.0, spec=model(projection={"kind": "pattention", "tokens": 24}))
draw_one("tokenformer_cost", root, Path("figures"))
assert ",own," in Path("figures/tokenformer_cost.csv").read_text()

shown = {
    "Skips of rank 3": ("denseformer_tradeoff", "denseformer_table"),
    "Low rank 8": ("tokenformer_cost", "vision_accuracy"),
    "Peak attention": ("decay_baselines", "decay_table"),
}
for label, entries in shown.items():
    for name in entries:
        draw_one(name, root, Path("figures"))
        assert label in Path(f"figures/{name}.csv").read_text(), (label, name)
assert plot_style("Skips of rank 3")["color"] == "#123456"
assert plot_style("Low rank 8")["color"] == "#234567"
assert plot_style("peak")["color"] == "#345678"
assert not {"torch"} & set(sys.modules)
"""


def test_a_new_kind_is_labelled_in_every_figure_that_shows_it(tmp_path):
    package = tmp_path / "src/formerlab"
    shutil.copytree(Path(formerlab.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (axis, union, before, kind, label, colour) in NEW.items():
        module = Path(union).parent / f"{kind}.py"
        (package / module).write_text(SPEC.format(name=name, kind=kind))
        text = (package / union).read_text()
        opening = re.search(before, text)[0]
        added = f"from formerlab.{module.with_suffix('').as_posix().replace('/', '.')} import {name}\n"
        text = text.replace(opening, f"{opening}{name} | ").replace("from formerlab.", f"{added}from formerlab.", 1)
        (package / union).write_text(text)
        line = f'  {kind}: {{label: "{label}", color: "{colour}", marker: "*"}}\n'
        table = package / "report/names.yaml"
        table.write_text(table.read_text().replace(f"{axis}:\n", f"{axis}:\n{line}", 1))
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    words = [sys.executable, "-c", USE, str(Path(__file__).parents[1])]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("axis", "union"), [("mixer", DepthMixer), ("projection", Projection), ("policy", CachePolicy)]
)
def test_names_yaml_lists_the_kinds_of_the_specs(axis, union):
    kinds = [variant.model_fields["kind"].default for variant in variants(union)]
    names = variant_styles()[axis]
    assert set(names) <= set(kinds)
    assert len({name.label for name in names.values()}) == len(names)


def test_a_label_shows_the_settings_of_the_run():
    record = {"depth.kind": "last_k", "depth.outputs": 4.0, "depth.embedding": "always"}
    assert kind_label("mixer", record, "depth.") == "Last-K, K = 4, X_0 always"
    assert kind_label("mixer", {"depth.kind": "of_another_checkout"}, "depth.") == "of another checkout"
    assert kind_label("mixer", {"depth.kind": None}, "depth.") == ""


def test_tables_show_labels_of_data_sets_and_their_baselines():
    rows = pd.DataFrame(
        {
            "source": "ours",
            "run": ["5-gram on text", "plain-8", "plain-24"],
            "variant": ["floor", "Transformer", "Transformer"],
            "regime": [None, "text, onecycle to 0.1", "novels, cosine to 0"],
        }
    )
    blocks = by_regime(with_labels(rows, "overnight"))
    assert {heading: [*block["variant"]] for heading, block in blocks.items()} == {
        "six test books, one-cycle learning rate to 0.1 of its peak": ["5-gram (baseline)", "Transformer"],
        "English novels, cosine learning rate to zero": ["Transformer"],
    }
