"""For its label and plot style, a new mixer, projection or policy needs only an entry in names.yaml."""

import pandas as pd
import pytest
from fixtures.rows import draw_one, make_decay, make_denseformer, make_run, model

from formerlab.cache import CachePolicy
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.projection import Projection
from formerlab.report import names
from formerlab.report.names import kind_label, variant_styles
from formerlab.report.studies.pruning import POLICY_LABELS
from formerlab.report.style import plot_style
from formerlab.report.write import with_labels
from formerlab.spec import variants

NEW = {
    "mixer": 'skip: {label: "Skips of rank {rank}", color: "#123456", marker: "*"}',
    "projection": 'low_rank: {label: "Low rank {rank}", color: "#234567", marker: "*"}',
    "policy": 'peak: {label: "Peak attention", color: "#345678", marker: "*"}',
}
FIGURES_BY_LABEL = {
    "Skips of rank 3": ("denseformer_patterns", "denseformer_table"),
    "Low rank 8": ("tokenformer_cost", "tokenformer_table"),
    "Peak attention": ("decay_table",),
}


@pytest.mark.usefixtures("unsaved")
def test_a_new_kind_is_labelled_in_every_figure_that_shows_it(tmp_path, monkeypatch):
    text = names.NAMES_FILE.read_text()
    for axis, line in NEW.items():
        text = text.replace(f"{axis}:\n", f"{axis}:\n  {line}\n", 1)
    (tmp_path / "names.yaml").write_text(text)
    monkeypatch.setattr(names, "NAMES_FILE", tmp_path / "names.yaml")
    monkeypatch.setitem(POLICY_LABELS, "peak", "Peak attention")  # read from names.yaml on import
    variant_styles.cache_clear()
    root = tmp_path / "new"
    make_denseformer(root, (0,), depths=(16,))
    make_run(root, "denseformer", "new-kind-16", spec=model(16, depth={"kind": "skip", "rank": 3}))
    make_run(root, "denseformer", "other-dwa-16", spec=model(16, depth={"kind": "dwa", "dilation": 3, "period": 1}))
    make_run(root, "tokenformer", "new-kind", spec=model(projection={"kind": "low_rank", "rank": 8}))
    make_run(root, "tokenformer", "other-size", spec=model(projection={"kind": "pattention", "tokens": 24}))
    make_decay(root)
    path = root / "decay/decoder/seed0/prune.csv"
    path.write_text(path.read_text() + "".join(
        line.replace("spatten", "peak") for line in path.read_text().splitlines(keepends=True) if "spatten" in line
    ))  # fmt: skip
    figures_by_label = FIGURES_BY_LABEL | {
        "3x1": ("denseformer_depth", "denseformer_architecture"),
        ",other-size,": ("tokenformer_cost",),
    }
    for label, name in ((label, name) for label, entries in figures_by_label.items() for name in entries):
        draw_one(name, root, tmp_path)
        assert label in (tmp_path / f"{name}.csv").read_text(), (label, name)
    styles = [plot_style(name)["color"] for name in ("Skips of rank 3", "Low rank 8", "peak")]
    variant_styles.cache_clear()
    assert styles == ["#123456", "#234567", "#345678"]


@pytest.mark.parametrize(
    ("axis", "union"), [("mixer", DepthMixer), ("projection", Projection), ("policy", CachePolicy)]
)
def test_names_yaml_lists_the_kinds_of_the_specs(axis, union):
    kinds = [variant.model_fields["kind"].default for variant in variants(union)]
    styles = variant_styles()[axis]
    assert set(styles) <= set(kinds)
    assert len({style.label for style in styles.values()}) == len(styles)


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
    labelled = with_labels(rows, "overnight")
    assert [*labelled["variant"]] == ["5-gram (baseline)", "Transformer", "Transformer"]
    assert [*labelled["regime"]] == [
        *("six books", "six books, one-cycle learning rate to 0.1 of its peak"),
        "English novels, cosine learning rate to zero",
    ]
