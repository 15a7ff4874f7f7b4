"""Figures and tables are rendered from the committed rows of scale laptop (one seed).

Without rows, every figure and table is rendered with a message.
"""

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures.rows import (
    BUDGETS,
    VOCABULARY,
    add_questions,
    draw_one,
    make_decay,
    make_denseformer,
    make_run,
    model,
    pattention,
    write_csv,
)
from fixtures.rows import write as add_rows
from matplotlib.figure import Figure

from formerlab.errors import UserError
from formerlab.files import DiskFull, write_text
from formerlab.plan.show import failed_entries
from formerlab.report import write
from formerlab.report.catalogue import catalogue, expand_columns
from formerlab.report.columns import count, meanings, number
from formerlab.report.headline import headline
from formerlab.report.pages import bullets, caption_title, format_table, markdown_table, without_constants
from formerlab.report.runs import held_out_losses, lineage, means_by_run, variant_label
from formerlab.report.studies.pruning import configurations, main_configurations
from formerlab.report.tables.transformer import scores
from formerlab.report.write import draw_all, draw_each
from formerlab.results.read import Results
from formerlab.results.stages import TABLES

ROOT = Path(__file__).parents[2]
CACHED, OVERNIGHT = ROOT / "results/cached", ROOT / "figures/cached/overnight"
ENTRIES = catalogue()
WITH_IMAGES = set({(entry.study, entry.kind): name for name, entry in ENTRIES.items()}.values())
"""One figure and one table per study.

The fixture `folder` saves only these figures as PDF and PNG. It writes a placeholder for all other figures.
"""
UNSAVED = pytest.mark.usefixtures("unsaved")
pytestmark = pytest.mark.xdist_group("figures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Render figures and tables from the committed rows of scale laptop and save WITH_IMAGES; return the folder."""
    folder, save = tmp_path_factory.mktemp("figures"), write.save

    def save_few(figure, pdf, png):
        if pdf.stem in WITH_IMAGES:
            save(figure, pdf, png)
        else:
            write_text(pdf, "not saved")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "save", save_few)
        draw_all(CACHED, folder, scale="laptop")
    return folder / "laptop"


def test_every_entry_is_rendered_here_or_committed(folder):
    rendered = {path.stem for path in folder.glob("*.csv")}
    assert rendered | {path.stem for path in (ROOT / "figures/cached").glob("*/*.csv")} >= set(ENTRIES)
    for name in rendered:
        assert "ours" in set(pd.read_csv(folder / f"{name}.csv")["source"]), name
        if ENTRIES[name].kind == "figure":
            saved = name in WITH_IMAGES
            assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF-" if saved else b"not saved"), name
            assert (folder / f"{name}.png").exists() == saved, name
        else:
            assert "No finished run" not in (folder / f"{name}.md").read_text(), name


@UNSAVED
def test_files_name_missing_rows(tmp_path):
    (tmp_path / "results").mkdir()
    for name, entry in ENTRIES.items():
        written = draw_one(name, tmp_path / "results", tmp_path / "out")
        assert [path.name for path in written] == list(entry.outputs)
        assert all(path.exists() for path in written)
        if entry.kind == "table":
            assert "No finished run" in written[-2].read_text()


@UNSAVED
def test_files_name_the_missing_runs_of_a_comparison(tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr(write, "empty", lambda message: messages.append(message) or Figure())
    for name, depth in (("plain-8", {"kind": "identity"}), ("dwa-1x1-8", {"kind": "dwa"})):
        make_run(tmp_path / "results", "denseformer", name, spec=model(8) | {"depth": depth})
    draw_one("denseformer_sparsity", tmp_path / "results", tmp_path / "out")
    assert "match depth.dilation=[!1]* depth.period=1 or" in messages[0]


@UNSAVED
def test_without_pdf_an_earlier_pdf_is_removed(tmp_path):
    make_run(tmp_path / "results", "decay", "decoder")
    file = tmp_path / "decay_rule.pdf"
    for pdf in (True, False):
        written = write.draw("decay_rule", Results(tmp_path / "results"), tmp_path, pdf=pdf)
        assert (file.exists(), file in written) == (pdf, pdf)
    assert all(path.exists() for path in written)


@UNSAVED
def test_only_selected_entries_are_rendered(tmp_path):
    make_run(tmp_path / "live" / "one", "decay", "decoder")
    written = draw_all(tmp_path / "live", tmp_path / "out", selects=lambda entry, scale: entry.name == "decay_rule")
    assert {path.stem for path in written} == {"decay_rule"}


def test_columns_are_expanded():
    assert expand_columns("run loss_nats[] perplexity[]± minus~Full") == [
        *("run", "loss_nats", "loss_nats_low", "loss_nats_high"),
        *("perplexity", "perplexity_low", "perplexity_high", "perplexity_se", "minus Full"),
    ]


def test_captions_are_written_beside_the_images(folder):
    from docutils.core import publish_doctree

    for path in folder.glob("*.rst"):
        entry, text = ENTRIES[path.stem], path.read_text()
        assert text.replace("\n\n- ", " - ").startswith(entry.caption)  # bullet points become a list
        publish_doctree(text, settings_overrides={"halt_level": 2, "report_level": 2})


def test_an_unknown_name_suggests_a_similar_one(tmp_path):
    with pytest.raises(UserError, match="did you mean decay_alpha"):
        draw_one("decay_alfa", tmp_path, tmp_path)


def test_a_failure_is_listed_and_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    def broken(results, runs):
        raise ZeroDivisionError("by its author")

    make_decay(tmp_path / "results")
    module = import_module(ENTRIES["decay_table"].module)
    monkeypatch.setattr(module, "decay_table", module.decay_table._replace(rows=broken))
    names = ["decay_one_shot_table", "decay_table", "decay_alfa", "decay_alphas_table"]
    assert draw_each(names, tmp_path / "results", tmp_path / "out") == ["decay_table", "decay_alfa"]
    output = capsys.readouterr().err
    assert output.startswith("Traceback")
    assert "warning: decay_table could not be rendered: ZeroDivisionError: by its author\nwarning: decay_alfa" in output
    assert "could not be rendered: no figure or table is called 'decay_alfa'" in output
    rendered = {"decay_one_shot_table", "decay_alphas_table"}
    assert {path.stem for path in (tmp_path / "out").iterdir()} - {".decay_table"} == {*rendered, "decay_table"}
    assert "decay_table could not be rendered" in (tmp_path / "out/decay_table.md").read_text()
    jobs = {"decay": {"entries": dict.fromkeys([*rendered, "decay_table"])}}
    ((name, reason),) = failed_entries({"figures": str(tmp_path / "out"), "draw": jobs})
    assert name == "decay_table"
    assert reason.startswith("ZeroDivisionError: by its author")
    monkeypatch.undo()
    assert draw_each(["decay_table"], tmp_path / "results", tmp_path / "out") == []
    assert failed_entries({"figures": str(tmp_path / "out"), "draw": jobs}) == []


@UNSAVED
def test_a_failure_keeps_the_earlier_files(tmp_path, monkeypatch):
    make_decay(tmp_path / "results")
    names, out = ["decay_alpha", "decay_table"], tmp_path / "out"
    assert draw_each(names, tmp_path / "results", out) == []
    (out / "decay_table.md").unlink()
    (out / "decay_alpha.png").unlink()
    files_before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(write, "load_rows", lambda entry, results: 1 / 0)
    assert draw_each(names, tmp_path / "results", out) == names
    files_after = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {name: files_after[name] for name in files_before} == files_before
    added = {"decay_table.md", "decay_alpha.png", ".decay_table.failed", ".decay_alpha.failed"}
    assert files_after.keys() - files_before.keys() == added


def test_a_full_disk_stops_rendering(tmp_path, monkeypatch):
    def full(*_, **__):
        raise DiskFull(tmp_path / "out/decay_table.csv")

    make_decay(tmp_path / "results")
    monkeypatch.setattr(write, "write", full)
    with pytest.raises(DiskFull, match="is the disk full"):
        draw_each(["decay_table"], tmp_path / "results", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@UNSAVED
def test_draw_all_skips_studies_without_runs(tmp_path, capsys):
    make_denseformer(tmp_path / "live" / "tiny", (0,), depths=(4,))
    written = draw_all(tmp_path / "live", tmp_path / "figures")
    expected_figures = {"architecture", "depth", "gain", "overview", "weights", "table", "patterns"}
    assert {path.stem for path in written} == {f"denseformer_{name}" for name in expected_figures}
    assert {path.stem for path in (tmp_path / "figures/tiny").iterdir()} == {path.stem for path in written}
    assert re.fullmatch(r"tiny: 7 rendered, \d+ have no rows of finished runs\n", capsys.readouterr().err)
    with pytest.raises(UserError, match="no finished runs"):
        draw_all(tmp_path / "cached", tmp_path / "figures")


def test_variants_are_read_from_the_spec():
    spec = {"spec.model.projection.kind": "linear", "spec.model.depth.kind": "identity", "spec.growth": None}
    assert variant_label(spec) == "Transformer"
    assert variant_label(spec | {"spec.model.projection.kind": "pattention"}) == "Tokenformer"
    dwa = {"spec.model.depth.kind": "dwa", "spec.model.depth.dilation": 4.0, "spec.model.depth.period": 5.0}
    assert variant_label(spec | dwa) == "DenseFormer 4x5"
    growth = {"spec.growth.keys": "zero", "spec.growth.tau": "keep", "spec.growth.optimizer": "carry"}
    assert variant_label(spec | growth) == "grown: zero keys, tau kept, optimizer state kept"
    frozen = variant_label(spec | growth | {"spec.growth.method": "tokens", "spec.growth.old_tokens": "freeze"})
    assert frozen == "grown: zero keys, tau kept, optimizer state kept, old tokens frozen"
    wide = growth | {"spec.growth.method": "hypercloning", "spec.growth.noise": 0.0}
    assert variant_label(spec | wide) == "grown: HyperCloning"
    assert variant_label(spec | wide | {"spec.growth.noise": 0.1}) == "grown: HyperCloning, noise 0.1"


def test_losses_are_means_over_tokens(tmp_path):
    folder = make_run(tmp_path, "tokenformer", "transformer-2")
    write_csv(folder / "test.csv", TABLES["test.csv"].required, [(0, 30, 2.0), (1, 10, 4.0)])
    row = means_by_run(held_out_losses(Results(tmp_path), "tokenformer")).iloc[0]
    assert row["loss_nats"] == pytest.approx(2.5)
    assert row["perplexity"] == pytest.approx(np.exp(2.5))
    assert np.isnan(row["loss_nats_low"])


@UNSAVED
def test_the_lineage_of_a_run_begins_with_its_oldest_ancestor(tmp_path):
    spec = model(projection=pattention(8))
    growth = {"keys": "random", "tau": "sqrt", "optimizer": "fresh"}
    names = ["tokenformer-1", "grown-random-sqrt-2", "grown-random-sqrt-3"]
    make_run(tmp_path, "tokenformer", names[0], spec=spec, flops=1.0)
    make_run(tmp_path, "tokenformer", names[1], spec=spec, init=names[0], growth=growth, flops=1.0, inherited=1.0)
    make_run(tmp_path, "tokenformer", names[2], spec=spec, init=names[1], growth=growth, flops=1.0, inherited=2.0)
    assert lineage(held_out_losses(Results(tmp_path), "tokenformer"), names[2]) == names
    draw_one("tokenformer_cost", tmp_path, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out" / "tokenformer_cost.csv")
    grown = rows[rows["series"].isin(["parent", "grown as published"]) & (rows["part"] == "mean")]
    assert list(grown["flops_cumulative"]) == [1.0, 2.0, 3.0]
    assert list(grown["tokens_cumulative"]) == [102_400, 204_800, 307_200]
    assert list(grown["training_time_s_cumulative"]) == [10.0, 20.0, 30.0]


def test_published_points_are_marked_and_complete(folder):
    rows = pd.read_csv(folder / "tokenformer_cost.csv").query("source == 'published'")
    grown = rows[rows["series"] == "grown, 30B a stage"]
    assert list(grown["perplexity"]) == [16.41, 14.02, 12.59, 11.77]
    assert list(grown["tpu_v4_hours"]) == [1710, 2110, 2825, 3920]
    suites = pd.read_csv(folder / "decay_suites_table.csv")
    suites = suites.query("source == 'published' and set == 'mean'").set_index(["run", "configuration"])
    decay = suites.loc[("OPT-2.7B", "Decay 0.2"), ["accuracy", "minus_full", "minus_h2o"]]
    assert decay.tolist() == pytest.approx([0.476, -0.019, 0.040])


def test_differences_are_beside_the_published_differences():
    rows = pd.read_csv(OVERNIGHT / "transformer_differences.csv").set_index(["source", "run"])
    published_row = (
        rows.loc[("published", "dropout-0"), ["loss_minus_base_nats", "bleu_minus_base"]].to_numpy(float).ravel()
    )
    assert published_row.tolist() == pytest.approx([np.log(5.77 / 4.92), 24.6 - 25.8])
    rows = pd.read_csv(OVERNIGHT / "vision_accuracy.csv")
    sizes = rows[rows["source"].eq("published") & rows["compared_with"].eq("ViT-B/16 (MAE recipe) 224px")]
    assert sizes["top1_points"].tolist() == pytest.approx([82.1 - 82.3])
    pairs = set(zip(rows["run"], rows["compared_with"], strict=True))
    # figures compare the same pairs of runs as the tables
    assert {("tokenformer", "tokenformer-matched"), ("score-gelu-l2", "score-gelu-l1")} <= pairs
    scores = pd.read_csv(OVERNIGHT / "vision_scores.csv")
    shared = rows[rows["question"].eq("Score (Table 4)")].reset_index(drop=True)
    pd.testing.assert_frame_equal(scores, shared[[*scores]])


def test_sparse_averages_are_shown_beside_dense_averages():
    times = pd.read_csv(OVERNIGHT / "denseformer_tradeoff.csv")
    published = times[times["source"].eq("published") & times["layers"].eq(48)].set_index("variant")["forward_time_s"]
    assert published["DenseFormer 4x1"] < published["DenseFormer 1x1"]
    rows = pd.read_csv(OVERNIGHT / "denseformer_sparsity.csv")
    published = rows[rows["source"] == "published"].set_index("run")
    assert published.loc["DenseFormer 1x1", "minus_dense_nats"] == 0
    assert published.loc["DenseFormer 4x1", "minus_dense_nats"] == pytest.approx(np.log(17.86 / 17.84))


def test_configurations_are_paired_with_the_full_cache(tmp_path):
    make_decay(tmp_path, (0, 1, 2))
    table = configurations(Results(tmp_path), "decay").set_index("configuration")
    assert table.loc["Full", "increase_nats"] == 0
    h2o = table.loc["H2O"].set_index("budget")
    assert h2o.loc[0.1, "increase_nats"] == pytest.approx(0.1, abs=0.02)
    assert (h2o["increase_nats_low"] < h2o["increase_nats"]).all()
    # The standard deviation over windows is 0.19 for losses and several times smaller for paired differences.
    assert (h2o["increase_nats_high"] - h2o["increase_nats_low"]).max() < 0.05
    assert "Decay 0.2, half recent" in table.index
    assert "H2O (local statistics)" in table.index


def test_the_main_configuration_is_as_published(tmp_path):
    make_decay(tmp_path)
    table = main_configurations(configurations(Results(tmp_path), "decay"))
    decay = table[table["policy"] == "decay"]
    assert set(zip(decay["alpha"], decay["recent"], strict=True)) == {(0.2, 0.0)}
    assert set(decay["budget"]) == set(BUDGETS)


@UNSAVED
def test_without_the_full_cache_there_is_no_interval(tmp_path):
    folder = make_run(tmp_path / "results", "decay", "decoder")
    rows = [("decay", alpha, 0.0, 0.4, 0.4, window, 64, 3.0 + window) for alpha in (0.1, 0.2) for window in range(3)]
    write_csv(folder / "prune.csv", TABLES["prune.csv"].required, rows)
    for name in ("decay_alpha", "decay_league", "decay_table"):
        draw_one(name, tmp_path / "results", tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "decay_table.csv").query("source == 'ours'")
    assert table["loss_nats"].notna().all()
    assert table["increase_nats"].isna().all()


@UNSAVED
def test_a_diverged_run_is_listed(tmp_path):
    uniform = float(np.log(VOCABULARY))
    make_run(tmp_path, "tokenformer", "transformer-2", 0)
    make_run(tmp_path, "tokenformer", "transformer-2", 1, loss=uniform, status="diverged", diverged_at_step=3)
    make_run(tmp_path, "tokenformer", "transformer-2", 2)
    draw_one("tokenformer_cost", tmp_path, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out" / "tokenformer_cost.csv")
    assert list(rows[rows["part"] == "mean"]["diverged"]) == [1]


def test_chance_is_shown_if_rows_have_the_number_of_choices(tmp_path):
    folder = make_run(tmp_path, "tokenformer", "transformer-2")
    columns = (*TABLES["zeroshot.csv"].required, "choices")
    write_csv(folder / "zeroshot.csv", columns, [("quiz", 1, i, "acc", float(i < 3), 4) for i in range(8)])
    draw_one("tokenformer_zeroshot", tmp_path, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out" / "tokenformer_zeroshot.csv").set_index("run")
    assert rows.loc["transformer-2", "quiz (acc)"] == pytest.approx(3 / 8)
    assert rows.loc["transformer-2", "quiz (acc)_se"] == pytest.approx(np.sqrt(3 / 8 * 5 / 8 / 8))
    assert rows.loc["chance", "quiz (acc)"] == 0.25


def test_all_rows_of_a_column_have_the_decimals_that_its_intervals_support():
    def cells(**columns):
        texts = format_table(pd.DataFrame(columns)).replace("\N{NO-BREAK SPACE}", " ", regex=True)
        return [*texts.to_dict("list").values()]

    spread = {"x_nats": [0.5, 0.0123, 1.0], "x_nats_low": [0.45, 0.01, np.nan], "x_nats_high": [0.55, 0.02, np.nan]}
    assert cells(**spread) == [["0.500 [0.450, 0.550]", "0.012 [0.010, 0.020]", "1.000"]]
    assert cells(perplexity=[74.21, 618.7], perplexity_low=[70.0, np.nan], perplexity_high=[78.7, np.nan]) == [
        ["74.2 [70.0, 78.7]", "618.7"]
    ]
    assert cells(perplexity=[18.61, 17.9], perplexity_se=[0.02, 0.1]) == [["18.61 ± 0.02", "17.90 ± 0.10"]]
    assert cells(budget=[0.1, 1.0], realised_budget=[0.0996, 0.1992]) == [["10", "100"], ["10.0", "19.9"]]
    assert cells(flops_cumulative=[1.3e14, 1.434e14], flops=[1e20, 2.3e19]) == [
        ["1.30e14", "1.43e14"],
        ["1.0e20", "2.3e19"],
    ]
    ends = {"gain_nats_pooled_low": [0.0612, np.nan], "gain_nats_pooled_high": [0.0858, np.nan]}
    seeds_alone = {"gain_nats_low": [0.01, 0.04], "gain_nats_high": [0.09, 0.06]}
    assert cells(gain_nats=[0.0731, 0.05], **seeds_alone, **ends) == [["0.073 [0.061, 0.086]", "0.050 [0.040, 0.060]"]]
    assert cells(lr=[0.01, 0.0000195], empty=[np.nan, np.nan]) == [["10", "0.0195"]]
    assert format_table(pd.DataFrame({"gain_nats": [0.5], "run": "a"}), {"run"}).to_dict("list") == {
        "gain (nats) ↑": ["0.500"]
    }
    assert number("difference (nats)", -0.00001, 3) == "0.000"
    assert [count(value) for value in (1_310_000_000.0, 89_012, 86e6, 152)] == ["1.31B", "89.0k", "86M", "152"]


def test_an_end_that_rounds_to_zero_has_a_sign():
    cells = {
        (-0.006, -0.011, -0.00002): "-0.006 [-0.011, -0.000]",
        (0.004, -0.00004, 0.008): "0.004 [-0.000, 0.008]",
        (-0.004, -0.008, 0.00004): "-0.004 [-0.008, 0.000]",
        (0.004, 0.00004, 0.008): "0.004 [+0.000, 0.008]",
        (-0.0002, -0.012, 0.012): "0.000 [-0.012, 0.012]",
        (0.0, 0.0, 0.5): "0.000 [0.000, 0.500]",
    }
    names = [f"x_minus_y_nats{end}" for end in ("", "_low", "_high")]
    (texts,) = format_table(pd.DataFrame([*cells], columns=names)).to_dict("list").values()
    plain = [text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-") for text in texts]
    assert plain == [*cells.values()]
    reference = pd.DataFrame({"x_minus_y_nats": [np.nan, 1.0], "is_reference": [True, False]})
    assert format_table(reference).iloc[0, 0] == "reference"
    for ratio, text in {(2.81, 0.999, 4.65): "2.810 [0.999, 4.650]", (0.98, 0.97, 0.99): "0.98 [0.97, 0.99]"}.items():
        row = pd.DataFrame([ratio], columns=["flops_ratio", "flops_ratio_low", "flops_ratio_high"])
        assert format_table(row).iloc[0, 0].replace("\N{NO-BREAK SPACE}", " ") == text


def test_numbers_are_aligned_right_and_captions_of_tables_are_short():
    lines = markdown_table(pd.DataFrame({"model": ["a", "b"], "loss": ["reference", "0.5"]})).splitlines()
    assert re.fullmatch(r"\|:-+\|-+:\|", lines[1])
    for entry in (entry for entry in ENTRIES.values() if entry.kind == "table"):
        assert caption_title(entry.caption).endswith("?"), entry.name
        assert len(bullets(entry.caption)) <= 3, entry.name
        assert len(" ".join(bullets(entry.caption)).split()) <= 60, entry.name


def test_columns_explain_themselves_and_say_which_direction_is_better():
    assert meanings(["model", "exact (%) ↑", "seeds"]) == [
        "exact (%): translations that equal the reference.",
        "↑: higher is better.",
    ]
    assert meanings(["held-out loss (nats) ↓", "held-out loss (nats) ↓"])[1:] == ["↓: lower is better."]
    assert meanings(["seeds"]) == []


def test_committed_tables_name_models_and_not_runs():
    for scale in ("overnight", "pretrained"):
        runs = {str(run) for rows in (ROOT / "figures/cached" / scale).glob("*_*.csv")
                for table in [pd.read_csv(rows)] if {"run", "source"} <= {*table}
                for run in table.loc[table["source"] == "ours", "run"].unique()}  # fmt: skip
        assert len(runs) > 9
        for path in (ROOT / "figures/cached" / scale).glob("*.md"):
            cells = {cell.strip() for line in path.read_text().splitlines() for cell in re.split(r"[|;:*]", line)}
            assert not cells & (runs - {"base"}), path


def test_constant_columns_become_a_note():
    cells, note = without_constants(pd.DataFrame({"run": ["a", "b"], "seeds": ["3", "3"]}))
    assert (list(cells), note) == (["run"], "In all rows: seeds 3.")
    assert without_constants(cells.head(1))[1] == ""
    assert without_constants(pd.DataFrame({"run": ["a", "b"], "schedule": ["", ""]}))[1] == ""
    assert caption_title("Cost of every run, after Table 1 of X (arXiv:1.2): all. More.") == "Cost of every run"


def test_no_committed_table_has_more_than_nine_columns():
    files = [path for scale in ("overnight", "pretrained") for path in (ROOT / "figures/cached" / scale).glob("*.md")]
    for path in files:
        for line in path.read_text().splitlines():
            assert not line.startswith("|:") or line.count("|") <= 10, path


def test_the_headline_has_every_study_that_ran(tmp_path):
    text = headline(CACHED / "laptop")
    for word in ("Transformer: translation", "Tokenformer", "grown-random-sqrt-2", "dwa-1x1-", "Decay 0.2"):
        assert word in text
    assert "no study has finished runs yet" in headline(tmp_path)


def test_damaged_rows_fail_the_rendering(tmp_path):
    folder = make_run(tmp_path, "tokenformer", "transformer-2")
    add_questions(folder / "zeroshot.csv")
    with open(folder / "zeroshot.csv", "a") as file:
        file.write("last_word,1,0,acc,1,4,more,cells")
    with pytest.raises(UserError, match=r"zeroshot\.csv: "):
        draw_one("tokenformer_zeroshot", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    json.loads((folder / "run.json").read_text())


def test_translation_scores_are_corpus_scores(tmp_path):
    """The score depends only on the sums of n-grams and lengths; the fraction of exact translations is a mean."""
    folder, sentences = make_run(tmp_path, "transformer", "base"), range(10)
    add_rows(folder / "translate.csv", [("test", sentence, 9, 9, 9, -0.5, sentence % 2) for sentence in sentences])
    counts = (9, 8, 7, 6, 10, 10, 10, 10, 13, 13)
    add_rows(folder / "bleu.csv", [("test", sentence, "sacrebleu", *counts) for sentence in sentences])
    base = scores(Results(tmp_path), "test").loc[("base", 0)]
    assert base["sacrebleu"] == pytest.approx(100 * (0.9 * 0.8 * 0.7 * 0.6) ** 0.25, abs=0.01)
    assert base["exact_percent"] == 50
    table = pd.read_csv(OVERNIGHT / "transformer_layers.csv").query("source == 'ours'").set_index("layer")
    assert table.loc["self_attention", "counted_exponent_n"] == pytest.approx(2)
    assert table.loc["self_attention", "counted_exponent_d"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "value", "keys"),
    [
        ("denseformer_depth", "loss_nats", ["run"]),
        ("denseformer_tradeoff", "loss_nats", ["run"]),
        ("denseformer_flow", "value", ["run", "measure", "place"]),
        ("denseformer_sparsity", "minus_dense_nats", ["run"]),
        ("transformer_differences", "loss_minus_base_nats", ["run"]),
        ("transformer_training", "validation_minus_base_nats", ["run", "step"]),
        ("vision_training", "validation_minus_vit_nats", ["run", "step"]),
        ("tokenformer_gap", "difference_nats", ["regime", "run", "rival"]),
    ],
)
def test_a_mean_is_the_mean_of_the_seeds_beside_it(name, value, keys):
    rows = pd.read_csv(OVERNIGHT / f"{name}.csv").query("source == 'ours'")
    means = rows.pivot_table(value, keys, "part").dropna()
    assert len(means)
    assert means["seed"].to_numpy() == pytest.approx(means["mean"].to_numpy())


def test_declarations_are_valid():
    for name, entry in ENTRIES.items():
        assert set(entry.reads) <= {*TABLES, "run.json"}
        assert "run.json" in entry.reads
        assert "To see" in entry.caption or entry.kind == "table", name
