"""Panels show the means, intervals, seeds and sources of their rows."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgb

from formerlab.report.marks import hidden_marks
from formerlab.report.names import variant_styles
from formerlab.report.panel import Panel, _y_colours, layout
from formerlab.report.runs import seed_notes, summarize
from formerlab.report.style import _STYLES, BLUE, GREEN, ORANGE, PUBLISHED_GROUND, VERMILION, WIDEST, ink, plot_style


@pytest.fixture
def rows():
    """Return two series of three seeds at two sizes, and published values of the same series."""
    each = [
        {
            "run": f"{name}-{size}",
            "variant": name,
            "size": size,
            "seed": seed,
            "loss_nats": 4.0 - 0.1 * size + 0.02 * seed,
        }
        for name in ("Transformer", "Tokenformer")
        for size in (1, 2)
        for seed in (0, 1, 2)
    ]
    ours = summarize(pd.DataFrame(each), "loss_nats", ["run", "variant", "size"])
    published = ours[ours["part"] == "mean"].assign(source="published")
    return pd.concat([ours, published.assign(loss_nats_low=np.nan, loss_nats_high=np.nan)], ignore_index=True)


def panel(**changes):
    return Panel(**{"x": "size", "y": "loss_nats", "where": {"source": "ours"}} | changes)


def dots(axes):
    return sum(len(points.get_offsets()) for points in axes.collections if isinstance(points, PathCollection))


def test_a_mean_has_its_interval_and_its_seeds_and_differences_are_paired(rows):
    means = rows[(rows["part"] == "mean") & (rows["source"] == "ours")]
    assert (means["loss_nats_low"] < means["loss_nats"]).all()
    assert means["seeds"].tolist() == [3] * 4
    each = rows[rows["part"] == "seed"].drop(columns="part")
    minus = summarize(each, "loss_nats", ["run"], {"Transformer-2": "Transformer-1"}, "gain")
    assert minus.loc[minus["part"] == "mean", ["gain", "gain_low", "gain_high"]].to_numpy() == pytest.approx(-0.1)
    assert len(minus) == 4


@pytest.mark.parametrize("kind", ["line", "band", "forest"])
def test_only_rows_of_a_forest_plot_have_shared_colours(rows, kind):
    adjacent = panel(kind=kind, x="loss_nats", y="run", by="run", share_y=True)
    colours = _y_colours(rows, [(adjacent, rows)])
    assert list(colours) == (list(rows["run"].unique()) if kind == "forest" else [])


@pytest.mark.parametrize("kind", ["line", "band", "forest"])
def test_every_kind_shows_all_seeds(rows, kind):
    shape = {"x": "loss_nats", "y": "run", "by": "run"} if kind == "forest" else {}
    (axes,) = layout(panel(kind=kind, **shape))(rows).axes
    if kind == "band":
        assert len([line for line in axes.get_lines() if line.get_linewidth() == 0.5]) == 2 * 3
    else:
        assert dots(axes) == 12


def test_pooled_intervals_are_thick_bars_behind_the_seed_intervals(rows):
    ours = rows[rows["source"] == "ours"]
    ends = {
        f"loss_nats_pooled_{end}": ours[f"loss_nats_{end}"] + 0.05 * sign for end, sign in (("low", -1), ("high", 1))
    }
    pooled = ours.assign(**ends)
    (axes,) = layout(panel())(pooled).axes
    bars = [lines for lines in axes.collections if isinstance(lines, LineCollection)]
    thick, thin = sorted(bars, key=lambda lines: -lines.get_linewidths()[0])
    for wide, narrow in zip(thick.get_segments(), thin.get_segments(), strict=True):
        assert wide[0][1] == pytest.approx(narrow[0][1] - 0.05)
    assert axes.get_ylim()[0] < pooled["loss_nats_pooled_low"].min()
    assert seed_notes(pooled)[0].startswith("n = 3 seeds; thick bars: 95 % interval with the spread of similar runs")


def test_a_mark_outside_its_panel_is_reported_unless_an_arrow_names_it(rows):
    means = rows[rows["seed"].isna()]
    cut = panel(title="here", finish=lambda axes, _: axes.set_ylim(top=3.85))
    assert hidden_marks(layout(panel(title="here"))(rows)) == []
    assert hidden_marks(layout(cut)(rows)) == ["here"]  # dots get no arrows
    figure = layout(cut)(means)
    assert hidden_marks(figure) == []
    figure.axes[0].set_ylim(top=3.75)
    assert hidden_marks(figure) == ["here"]


def test_text_has_enough_contrast_and_each_palette_colour_marks_one_family():
    families = {
        BLUE: "Tokenformer|grown|final size|random keys|parent",
        GREEN: "decay|Decay",
        VERMILION: "h2o",
        ORANGE: "DenseFormer 1x1",
    }
    policies, *others = (variant_styles()[axis] for axis in ("policy", "mixer", "projection"))
    for name in [*_STYLES, *policies, *(name.label for kinds in others for name in kinds.values())]:
        colour = plot_style(name)["color"]
        red, green, blue = (((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in to_rgb(ink(colour)))
        assert 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) >= 4.5, name
        for family, names in families.items():
            assert to_hex(colour) != to_hex(family) or re.match(names, name), name


def test_published_panels_have_a_background_colour_and_a_title(rows):
    ours, published = layout(panel(title="here"), panel(where={"source": "published"}, title="there"))(rows).axes
    assert ours.get_title() == "here"
    assert published.get_title().startswith("PUBLISHED, not ours:")
    assert to_hex(published.get_facecolor()) == PUBLISHED_GROUND
    assert dots(published) == 0


def test_joined_points_stay_at_their_x_and_rows_without_x_are_horizontal_lines(rows):
    level = rows.iloc[:1].assign(variant="level", size=np.nan)
    (axes,) = layout(panel())(pd.concat([rows, level], ignore_index=True)).axes
    joined = [
        line.get_xdata() for line in axes.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() != "None"
    ]
    assert [list(points) for points in joined] == [[1, 2]] * 2
    assert sum(len(bars.get_segments()) for bars in axes.collections if isinstance(bars, LineCollection)) == 4
    assert "level" in {text.get_text() for text in axes.texts}
    # the dots of seeds are beside the bars, on opposite sides for the two series
    shifts = [
        points.get_offset_transform().transform((1, 4))[0] - axes.transData.transform((1, 4))[0]
        for points in axes.collections
        if isinstance(points, PathCollection)
    ]
    assert shifts[0] < 0 < shifts[1] == pytest.approx(-shifts[0])


@pytest.mark.parametrize(("apart", "expected"), [(0.0, [[1, 2], [1.035, 2.035]]), (9.0, [[1, 2]] * 2)])
def test_points_that_are_not_joined_are_shifted_if_their_bars_overlap(rows, apart, expected):
    losses = [column for column in rows if str(column).startswith("loss_nats")]
    rows.loc[rows["variant"].eq("Transformer"), losses] += apart
    (axes,) = layout(panel())(rows.assign(_linestyle="")).axes
    xs = [line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 1]
    assert sorted(xs) == pytest.approx(sorted(x for of_series in expected for x in of_series))
    (axes,) = layout(panel(where={"source": "published"}))(rows.assign(_linestyle="")).axes
    # points without error bars are not shifted
    assert {x for line in axes.get_lines() for x in line.get_xdata()} == {1, 2}


def test_verdicts_are_a_line_of_the_note(rows):
    (text,) = layout(panel(title="Loss", name="none"))(rows.assign(_claims="a, b: agrees; c: no verdict")).texts
    assert text.get_text().endswith("\nClaims: a, b: agrees; c: no verdict.")


def test_a_series_whose_last_value_is_missing_keeps_its_name(rows):
    last_value = rows["variant"].eq("Transformer") & rows["size"].eq(2)
    (axes,) = layout(panel())(rows.assign(loss_nats=rows["loss_nats"].mask(last_value))).axes
    assert {text.get_text() for text in axes.texts} == {"Transformer", "Tokenformer"}


def test_facets_have_a_panel_per_value_and_figures_are_at_most_a_page_wide(rows):
    figure = layout(panel(facet="size", name="legend"), columns=3, wanted=["Transformer", "Perceptron"])(rows)
    assert [axes.get_title() for axes in figure.axes] == ["1", "2"]
    assert figure.get_size_inches()[0] == WIDEST
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"Transformer", "Tokenformer"}
    assert "Missing, no finished runs: Perceptron." in figure.get_label()


def test_a_caption_says_how_many_seeds_and_which_runs_diverged(rows):
    rows = rows.assign(diverged=[1, *[0] * (len(rows) - 1)])
    assert seed_notes(rows)[0].startswith("n = 3 seeds; bars and bands: 95 % Student t interval")
    assert seed_notes(rows)[1] == "Diverged, counted as a uniform guess: Transformer-1 (1 of 3 seeds)."
    assert seed_notes(rows.assign(seeds=1, loss_nats_low=np.nan)) != []
    assert "no interval" in seed_notes(rows.assign(seeds=1, loss_nats_low=np.nan))[0]
    assert "no interval" in seed_notes(rows.drop(columns="loss_nats_low"))[0]
    # bars that are not confidence intervals, such as quartiles
    assert "no interval" in seed_notes(rows.assign(seeds=1))[0]
    assert "bootstrap interval over test examples" in seed_notes(rows.assign(seeds=1, interval="windows"))[0]


def test_bars_longer_than_the_range_of_the_means_end_in_an_arrow_with_their_value(rows):
    rows.loc[0, ["loss_nats_low", "loss_nats_high"]] = [-50.0, 50.0]
    (axes,) = layout(panel())(rows).axes
    low, high = axes.get_ylim()
    assert 3 < low < high < 5
    arrows = {text.get_text() for text in axes.texts} - {"Transformer", "Tokenformer"}
    assert arrows == {"50", "\N{MINUS SIGN}50"}


def test_a_long_bar_has_an_arrow_only_beyond_the_final_limits():
    rows = pd.DataFrame({"source": "ours", "part": "mean", "variant": "Tokenformer", "size": [*range(4)] * 2})
    rows = rows.assign(loss_nats=[1.0, 1.1, 1.2, 1.3, 1.0, 1.5, 1.8, 2.5], stage=["short"] * 4 + ["long"] * 4)
    rows = rows.assign(loss_nats_low=0.95, loss_nats_high=[2.0, *rows["loss_nats"][1:]])
    for limits, expected in (("", ["2"]), ("y", [])):
        left, _ = layout(panel(facet="stage", same_limits=limits))(rows).axes
        assert [text.get_text() for text in left.texts if text.get_text() != "Tokenformer"] == expected


@pytest.mark.parametrize(("kind", "marks"), [("band", "bands"), ("line", "bars")])
def test_the_note_explains_only_the_marks_that_are_rendered(rows, kind, marks):
    seeds = "thin lines" if kind == "band" else "dots"
    without = rows[rows["part"] == "mean"]
    for data, words in ((rows, f"; {seeds}: seeds"), (without, "")):
        note = layout(panel(kind=kind))(data).get_label()
        assert note == f"n = 3 seeds; {marks}: 95 % Student t interval over seeds{words}."
    other = without.assign(loss_nats=without["loss_nats"], other_nats=1.0)
    assert layout(panel(kind=kind, y="other_nats"))(other).get_label() == "n = 3 seeds."


def test_the_note_names_data_set_and_model_unless_a_title_does(rows):
    labelled_rows = rows.assign(_data_set="books", _released=None, _blocks=4.0, _wide=rows["size"].map({1: 64, 2: 128}))
    titled, plain = layout(panel(title="{setting}"))(labelled_rows), layout(panel(title="Loss"))(labelled_rows)
    assert titled.axes[0].get_title() == "books, 4 blocks, width 64 to 128"
    marks = "n = 3 seeds; bars: 95 % Student t interval over seeds; dots: seeds"
    assert [text.get_text() for text in titled.texts] == [marks]
    assert [text.get_text() for text in plain.texts] == [f"books, 4 blocks, width 64 to 128; {marks}"]
    released = labelled_rows.assign(_released="SmolLM2")
    assert layout(panel())(released).texts[0].get_text() == f"books, SmolLM2; {marks}"


def test_an_axis_with_values_that_have_no_logarithm_is_linear(rows):
    assert layout(panel(log="y"))(rows).axes[0].get_yscale() == "log"
    assert layout(panel(log="y"))(rows.assign(loss_nats=rows["loss_nats"] - 4)).axes[0].get_yscale() == "linear"
