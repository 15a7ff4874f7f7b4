"""Figures and tables of the pruning study, on rows with known results."""

import numpy as np
import pandas as pd
import pytest
from fixtures.rows import make_run, write_csv
from matplotlib.colors import to_hex

from formerlab.evaluation.pruning import long_context
from formerlab.report.figures.decay.answers import published_accuracies
from formerlab.report.figures.decay.long import MISSED, decay_passkey
from formerlab.report.figures.decay.loss import decay_alpha, decay_league
from formerlab.report.names import data_set_label
from formerlab.report.studies.policy_comparison import MIN_FULL_SCORE_PERCENT, NEEDLES
from formerlab.report.studies.pruning import (
    budget_text,
    configurations,
    decay_minus_h2o,
    decode_speeds,
    nearest_budget_rows,
)
from formerlab.report.studies.questions import DIFFERENCES, MEAN_LABEL, SUITES, accuracies
from formerlab.report.tables.decay.answers import decay_suites_table
from formerlab.report.tables.decay.budgets import decay_budgets_table
from formerlab.report.tables.decay.loss import (
    BEST_OF_TEXT,
    BEST_OF_WINDOW,
    decay_alphas_table,
    decay_decode_table,
    decay_table,
)
from formerlab.report.tables.decay.objections import decay_objections_table
from formerlab.results.read import Results
from formerlab.results.stages import TABLES
from formerlab.statistics import student


def answered(task, policy, right, alpha=np.nan, examples=40, seeds=(0, 1), budget=0.4):
    """Return `examples` answers per seed; the first `right` of them are correct."""
    cells = {"study": "decay", "run": "decoder", "policy": policy, "alpha": alpha, "recent": np.nan, "budget": budget}
    return pd.DataFrame(
        cells
        | {"seed": seed, "realised_budget": budget, "task": task, "example": str(index), "choices": 4}
        | {"metric": "acc", "value": float(index < right)}
        for seed in seeds
        for index in range(examples)
    )


def test_differences_are_paired_on_the_same_questions():
    rows = pd.concat([answered("piqa", "full", 30, budget=1.0), answered("piqa", "h2o", 20)])
    table = accuracies(rows).set_index("policy")
    assert table.loc["full", ["accuracy", "difference", "difference_low", "difference_high"]].tolist() == [
        0.75,
        0,
        0,
        0,
    ]
    assert table.loc["h2o", "difference"] == pytest.approx(-0.25)
    assert table.loc["h2o", "difference_low"] < -0.25 < table.loc["h2o", "difference_high"] < 0
    assert table.loc["h2o", ["seeds", "questions"]].tolist() == [2, 40]


def test_suites_have_equal_weight_in_the_mean():
    parts = [
        answered(f"{suite}_local", policy, 10 * index, examples=40 + 20 * index, budget=budget)
        for index, suite in enumerate(SUITES)
        for policy, budget in (("full", 1.0), ("decay", 0.4))
    ]
    table = accuracies(pd.concat(parts))
    means = table[table["task"] == f"{MEAN_LABEL} (local)"]
    expected = np.mean([10 * index / (40 + 20 * index) for index in range(5)])
    assert means["accuracy"].tolist() == pytest.approx([expected] * 2)
    assert set(means["questions"]) == {sum(40 + 20 * index for index in range(5))}
    assert (means["low"] < expected).all()
    assert MEAN_LABEL not in set(table["task"])  # local suites never count as published suites
    without = accuracies(pd.concat(parts[2:]))
    assert f"{MEAN_LABEL} (local)" not in set(without["task"])


def test_decay_minus_h2o_uses_half_recent():
    rows_by_recent = [answered("piqa", "h2o", right).assign(recent=recent) for right, recent in ((10, 0.25), (30, 0.5))]
    table = accuracies(pd.concat([*rows_by_recent, answered("piqa", "decay", 30, alpha=0.2)]), against=("h2o",))
    assert table.set_index("policy").loc["decay", DIFFERENCES["h2o"]] == 0


def test_questions_that_a_configuration_did_not_answer_are_excluded():
    rows = pd.concat([answered("piqa", "full", 30, budget=1.0), answered("piqa", "h2o", 5, examples=10)])
    table = accuracies(rows).set_index("policy")
    assert table.loc["full", "accuracy"] == 1.0
    assert table.loc["full", "questions"] == 10


def test_decode_speeds_are_compared_within_a_repetition(tmp_path):
    """A machine that is slower in one repetition is slower for all caches, so the ratios do not change."""
    make_run(tmp_path, "decay", "decoder", 0)
    slowdowns = (1.0, 3.0, 2.0, 1.0, 5.0)
    rows = [
        ("decoder", policy, alpha, None, budget, 128, 4, number, 1, token_s * factor, size, metadata, prompt_s * factor)
        for number, factor in enumerate(slowdowns, start=1)
        for policy, alpha, budget, token_s, size, metadata, prompt_s in (
            ("full", None, 1.0, 0.01, 1000, 0, 2.0),
            ("decay", 0.2, 0.25, 0.02, 250, 30, 3.0),
        )
    ]
    write_csv(tmp_path / "decay/decode.csv", TABLES["decode.csv"].names, rows)
    table = decode_speeds(Results(tmp_path), "decay", ("*",)).set_index("configuration")
    assert table.index.to_list() == ["Full", "Decay 0.2"]
    assert table.loc["Full", "tokens_per_s"] == pytest.approx(4 / 0.02)
    ratios = table.loc["Decay 0.2", ["speed_ratio_low", "speed_ratio", "speed_ratio_high"]]
    assert ratios.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert table["prompt_ratio"].tolist() == pytest.approx([1.0, 1.5])
    assert table["cache_share"].tolist() == [1.0, 0.25]
    assert table["metadata_bytes"].tolist() == [0, 30]
    assert decode_speeds(Results(tmp_path), "decay", ("other",)).empty
    # the table is empty if the selected runs have no timings
    assert decay_decode_table.rows(Results(tmp_path), ("other",)).empty


def test_the_table_of_suites_uses_the_published_budget(tmp_path):
    right = {("full", 1.0): 8, ("h2o", 0.2): 0, ("h2o", 0.4): 5, ("local", 0.4): 4}
    rows = [
        (policy, None, 0.5 if policy == "h2o" else None, budget, budget, f"{suite}_local", 1, example, "acc", value)
        for (policy, budget), count in right.items()
        for suite in SUITES
        for example in range(10)
        for value in [float(example < count)]
    ]
    folder = make_run(tmp_path, "decay", "released-small")
    write_csv(folder / "prune_questions.csv", TABLES["prune_questions.csv"].required, rows)
    rows = decay_suites_table.rows(Results(tmp_path), ("released-*",))
    for name in ("PIQA", "mean"):
        table = rows[rows["set"] == name].set_index("configuration")
        assert table.index.to_list() == ["Full", "Local", "H2O"]
        assert table["accuracy"].tolist() == pytest.approx([0.8, 0.4, 0.5])
        assert (table["accuracy_low"].lt(table["accuracy"]) & table["accuracy"].lt(table["accuracy_high"])).all()
        assert table["minus_full"].tolist() == pytest.approx([np.nan, -0.4, -0.3], nan_ok=True)
        assert table["minus_h2o"].tolist() == pytest.approx([0.3, -0.1, np.nan], nan_ok=True)
        assert table.loc["Local", "minus_full_low"] < -0.4 < table.loc["Local", "minus_full_high"] < 0


def test_embedded_tasks_are_shown_only_for_runs_without_published_tasks(tmp_path):
    right = {("full", None, None, 1.0): 8, ("h2o", None, 0.5, 0.4): 5, ("decay", 0.2, 0.0, 0.4): 6}
    right |= {("decay", 0.0, 0.0, 0.4): 4, ("decay", 0.5, 0.0, 0.4): 7}
    for run, tasks in {
        "decoder": ("embedded_last_word", "embedded_summary"),
        "other": ("piqa", "embedded_summary"),
    }.items():
        rows = [
            (*arm, arm[3], task, 1, example, metric, float(example < count))
            for arm, count in right.items()
            for task in tasks
            for example in range(10)
            for metric in ("acc", "acc_mutual_info")
        ]
        folder = make_run(tmp_path, "decay", run)
        write_csv(folder / "prune_questions.csv", TABLES["prune_questions.csv"].required, rows)
    rows = decay_suites_table.rows(Results(tmp_path), ("*",))
    assert rows[rows["set"].ne("claim")].groupby("run")["set"].unique().map(set).to_dict() == {
        "decoder": {"last word", "summary", "mean"},
        "other": {"PIQA", "mean"},
    }
    *_, means, sets = decay_suites_table.readers(rows.assign(source="ours")).values()
    configurations = means["configuration"].tolist()
    assert configurations == ["Full", "H2O", "Decay 0.5", "Decay 0.2", "Decay 0"], "the best alpha is not omitted"
    assert sets["set"].tolist() == ["mean", "last word", "summary"]
    differences = sets[["full", "h2o_loses", "decay_minus_h2o"]].to_numpy()
    assert differences == pytest.approx(np.tile([0.8, 0.3, 0.1], (3, 1)))


def test_the_loss_of_h2o_and_the_gain_of_decay_are_paired(tmp_path):
    """Full answers 8 of 10 questions, H2O 5 and Decay 6, so Decay recovers a third of the loss of H2O."""
    right = {("full", None, None, 1.0): 8, ("h2o", None, 0.5, 0.4): 5, ("decay", 0.2, 0.0, 0.4): 6}
    right |= {("decay", 0.5, 0.0, 0.4): 7, ("h2o variant=local_statistics", None, 0.5, 0.4): 4}
    rows = [
        (*arm, arm[3], task, 1, example, metric, float(example < count), 4)
        for arm, count in right.items()
        for task in ("arc_easy_local", "sciq_local", "blimp_local")
        for example in range(10)
        for metric in ("acc", "acc_mutual_info")
    ]
    folder = make_run(tmp_path, "decay", "released-small")
    write_csv(folder / "prune_questions.csv", (*TABLES["prune_questions.csv"].required, "choices"), rows)
    table = decay_objections_table.rows(Results(tmp_path), ["released-small"])
    means = table[table["set"].str.startswith("the article's sets without")].set_index(["scoring", "condition"])
    plain = means.loc["total probability"]
    gains = {"as registered": 0.1, "alpha 0.5, the best on these questions": 0.2}
    gains["H2O of the official code for OPT"] = 0.2
    assert plain["decay_minus_h2o"].to_dict() == pytest.approx(gains)
    registered = plain.loc["as registered"]
    assert registered[["h2o_loses", "full_minus_chance"]].tolist() == pytest.approx([0.3, 0.55])
    fractions = [4.0 / 5.9, 4.6 / 7.9]
    assert decay_objections_table.published()["fraction_won_back"].tolist() == pytest.approx(fractions)
    beyond = registered[["beyond_published", "beyond_llama"]].tolist()
    assert beyond == pytest.approx([0.1 - 0.3 * fraction for fraction in fractions])
    assert set(means.loc["mutual information"].index) == {"as registered"}
    costly = table[table["set"].eq("ARC-e, SciQ, BLiMP")].set_index("scoring").loc["mutual information"]
    assert costly[["sets", "questions"]].tolist() == [3, 30]
    assert costly["fraction_won_back"] == pytest.approx(1 / 3)
    assert costly["fraction_won_back_low"] < 1 / 3 < costly["fraction_won_back_high"]
    (printed_table,) = decay_objections_table.readers(table.assign(source="ours")).values()
    assert printed_table["set"].tolist() == ["ARC-e, SciQ, BLiMP"] * 2, "a group of one set is in the CSV only"


def test_the_cost_of_a_budget_is_the_increase_of_perplexity_in_percent(tmp_path):
    folder = make_run(tmp_path, "decay", "released-small")
    losses = {("full", None, None, 1.0): HARD, ("h2o", None, 0.5, 0.4): HARD + 0.02}
    losses |= {("decay", 0.95, 0.5, 0.4): HARD + 0.01}
    write_csv(folder / "prune.csv", TABLES["prune.csv"].required, windows(losses))
    answers = [
        (*arm, arm[3], f"{suite}_local", 1, example, "acc", float(example < count))
        for arm, count in ((("full", None, None, 1.0), 8), (("h2o", None, 0.5, 0.4), 5))
        for suite in SUITES
        for example in range(10)
    ]
    write_csv(folder / "prune_questions.csv", TABLES["prune_questions.csv"].required, answers)
    table = decay_budgets_table.rows(Results(tmp_path), ["released-small"])
    increases = table.set_index("configuration")["perplexity_increase_percent"].dropna().to_dict()
    assert increases == pytest.approx(
        {"Full": 0, "H2O": 100 * np.expm1(0.02), "Decay 0.95, half recent": 100 * np.expm1(0.01)}
    )
    assert table.set_index("configuration")["minus_full"].dropna().to_dict() == pytest.approx({"H2O": -0.3})
    perplexities, accuracies = decay_budgets_table.readers(table.assign(source="ours")).values()
    assert perplexities["configuration"].tolist() == ["H2O", "Decay 0.95, half recent"]
    assert accuracies["configuration"].tolist() == ["H2O"]


def test_each_run_shows_its_nearest_budget():
    cells = [("a", "full", 1.0), ("a", "h2o", 0.2), ("a", "h2o", 0.4), ("b", "full", 1.0), ("b", "h2o", 0.2)]
    rows = pd.DataFrame(cells, columns=["run", "policy", "budget"])
    assert nearest_budget_rows(rows).index.tolist() == [0, 2, 3, 4]
    assert [budget_text(budget, " of the tokens") for budget in (0.4, 64)] == ["40 % of the tokens", "64 entries"]


def test_passkeys_are_counted_by_length_and_position(tmp_path):
    rows = [
        (policy, None, recent, budget, budget, 1024, depth, number, int(number < numbers * depth), -0.1)
        for policy, recent, budget, numbers in (("full", None, 1.0, 3), ("h2o", 0.5, 0.4, 2))
        for depth in (0.1, 0.5)
        for number in range(2)
    ]
    write_csv(make_run(tmp_path, "decay", "long-small") / "passkey.csv", TABLES["passkey.csv"].required, rows)
    data = decay_passkey.rows(Results(tmp_path), ("long-*",))
    full = data[data["policy"].eq("full")].set_index("depth")
    assert full["found"].to_dict() == {0.1: 0.5, 0.5: 1.0}
    assert (full["numbers"] == 2).all()
    assert full["log_prob"].tolist() == pytest.approx([-0.1, -0.1])
    figure = decay_passkey.draw(data)
    (panel,) = figure.axes
    assert "texts left out because the full cache fails: 1" in figure.get_label()
    of_full, of_h2o = ([to_hex(colour) for colour in row.get_facecolors()] for row in panel.collections)
    colours = [to_hex(label.get_color()) for label in panel.get_yticklabels()]
    assert of_full == [colours[0]] * 3
    assert of_h2o.count(MISSED) == 1, "H2O finds one number at each depth"
    counts = [text.get_text() for text in panel.texts]
    assert counts == ["3 of 3", "2 of 3", "at 10 %", "at 50 %"]
    write_needles(tmp_path)
    short = decay_passkey.rows(Results(tmp_path), ("long-*",)).dropna(subset="found_percent")
    by_task = short.groupby("task").agg({"configuration": set, "decides": set, "numbers": set})
    assert by_task["configuration"].tolist() == 2 * [{"Full", "H2O"}]
    assert by_task["numbers"].tolist() == 2 * [{4}]
    assert short.groupby("task")["by_text"].unique().map(list).to_dict() == {
        "needle_multikey_512": ["1000"],
        "needle_single_512": ["1110"],
    }
    assert by_task["decides"].to_dict() == {"needle_multikey_512": {"no"}, "needle_single_512": {"yes"}}


def windows(losses):
    """Return rows of prune.csv with these losses by configuration and window."""
    return [
        (policy, alpha, recent, size, size, window, 512, float(loss))
        for (policy, alpha, recent, size), values in losses.items()
        for window, loss in enumerate(values)
    ]


HARD = np.array([2.0, 4.0, 3.0, 5.0, 3.5])
"""Losses of windows of very different difficulty."""
PRUNED = {
    ("full", None, None, 1.0): HARD,
    ("local", None, None, 0.4): HARD + 5,
    ("h2o", None, 0.5, 0.4): HARD + 0.1,
    ("h2o variant=local_statistics", None, 0.5, 0.4): HARD + 0.3,
    ("decay", 0.1, 0.0, 0.4): HARD + 0.1 + np.array([0.01, -0.01, 0.02, -0.02, 0.0]),
    ("decay", 0.2, 0.0, 0.4): HARD + 0.12,
    ("decay", 1.0, 0.0, 0.4): HARD + 0.9,
}


def pruned_runs(root, *names):
    for name in names:
        path = make_run(root, "decay", name) / "prune.csv"
        write_csv(path, TABLES["prune.csv"].required, windows(PRUNED))
    return Results(root)


def test_decay_is_compared_with_h2o_on_the_same_windows(tmp_path):
    results = pruned_runs(tmp_path, "decoder")
    table = decay_minus_h2o(results, "decay").set_index("alpha")
    assert table["minus_h2o_nats"].to_dict() == pytest.approx({0.1: 0.0, 0.2: 0.02, 1.0: 0.8})
    assert table.loc[0.1, "minus_h2o_nats_low"] < 0 < table.loc[0.1, "minus_h2o_nats_high"]
    data = decay_alpha.rows(results, ("*",))
    assert data["minus_h2o_nats"].tolist() == pytest.approx([0.0, 0.02, 0.8])
    (panel,) = decay_alpha.draw(data).axes
    assert panel.get_title() == "text, cache of 40 %"
    assert sorted(panel.get_lines()[0].get_ydata()) == pytest.approx([0.0, 0.02, 0.8])
    assert panel.get_ylim()[1] < 0.8
    assert panel.texts[-1].get_text() == "0.8", "an arrow gives the difference beyond the axis"
    assert "1.0" in [tick.get_text() for tick in panel.get_xticklabels()]


def test_the_difference_to_h2o_is_empty_without_h2o(tmp_path):
    rows = {arm: losses for arm, losses in PRUNED.items() if not arm[0].startswith("h2o")}
    write_csv(make_run(tmp_path, "decay", "decoder") / "prune.csv", TABLES["prune.csv"].required, windows(rows))
    assert decay_minus_h2o(Results(tmp_path), "decay").empty
    assert decay_alpha.rows(Results(tmp_path), ("*",)).empty


def test_each_text_has_a_panel_and_local_is_in_the_csv_only(tmp_path):
    data = decay_league.rows(pruned_runs(tmp_path, "released-small", "released-large"), ("*",))
    figure = decay_league.draw(data)
    titles = [panel.get_title().partition(", full")[0] for panel in figure.axes]
    assert titles == ["text, large", "text, small"]
    assert {text.get_text() for text in figure.axes[0].texts} == {"H2O", "Decay 0.2"}
    assert figure.axes[0].get_ylim()[1] < 4.9
    assert data["configuration"].eq("Local").sum() == 2


def test_each_policy_is_paired_with_h2o_on_common_windows(tmp_path):
    path = make_run(tmp_path, "decay", "random-small") / "prune.csv"
    harder = HARD + np.array([0.0, 9.0, 0.0, 9.0, 0.0])  # on windows that the other run does not use
    rows = {("full", None, None, 1.0): HARD, ("h2o", None, 0.5, 0.1): harder + 0.2}
    rows |= {("random", None, None, 0.1): harder + 3, ("h2o variant=local_statistics", None, 0.5, 0.1): harder}
    write_csv(path, TABLES["prune.csv"].required, windows(rows))
    path = make_run(tmp_path, "decay", "league-small") / "prune.csv"
    rows = {("full", None, None, 1.0): HARD, ("pyramid(h2o) layers=30", None, 0.5, 0.1): HARD + 0.05}
    rows |= {("decay", alpha, recent, 0.1): HARD + alpha for alpha, recent in ((0.2, 0.0), (0.95, 0.5), (0.5, 0.0))}
    write_csv(path, TABLES["prune.csv"].required, [row for row in windows(rows) if row[5] % 2 == 0])
    data = decay_league.rows(Results(tmp_path), ["random-small", "league-small"])
    losses = data[data["increase_nats"].notna() & data["policy"].ne("full")].set_index("configuration")
    assert losses["windows"].to_dict() == {"H2O": 5, "Random": 5, "Decay 0.2": 3, "Decay 0.95, half recent": 3}
    expected = {"H2O": 0, "Random": 2.8, "Decay 0.2": 0, "Decay 0.95, half recent": 0.75}
    assert losses["minus_h2o_nats"].to_dict() == pytest.approx(expected)
    assert losses.loc["H2O", "increase_nats"] == pytest.approx(3.8)
    assert losses.loc["Decay 0.2", "increase_nats"] == pytest.approx(0.2)
    figure = decay_league.draw(data)
    (panel,) = figure.axes
    assert panel.get_title() == f"text, full cache {HARD.mean():.2f}"
    assert [label.get_text() for label in panel.get_xticklabels()] == ["10 %"]
    names = [name.get_text() for name in panel.texts[1:]]  # after the value of an arrow
    drawn = dict(zip(names, (line.get_ydata()[0] for line in panel.get_lines()), strict=False))
    assert drawn == pytest.approx({"H2O": 3.8, "Decay 0.95, half recent": 0.95, "Decay 0.2": 0.2})
    table = decay_table.rows(Results(tmp_path), ["random-small", "league-small"])
    pruned = table[table["policy"].ne("full")].set_index("configuration")
    assert pruned.loc[["Random", "Decay 0.2", "H2O, budget by layer"], "minus_h2o_nats"].tolist() == pytest.approx(
        [2.8, 0, -0.15]
    )
    assert pruned.loc["H2O", "minus_h2o_nats"] != pruned.loc["H2O", "minus_h2o_nats"], "the reference has no difference"
    lowest, block = decay_table.readers(table.assign(source="ours")).values()
    assert lowest.to_dict("list") == {"text": ["text"], "10 %": ["H2O (local statistics)"]}
    names = ["Full", "H2O", "H2O (local statistics)", "Random"]
    assert block["configuration"].tolist() == names, "others read fewer windows"
    assert block["10 % (nats) ↓"].tolist() == pytest.approx([-3.8, np.nan, -0.2, 2.8], nan_ok=True)
    answer = decay_table.answer(table.assign(source="ours")).replace("\N{MINUS SIGN}", "-")
    assert answer == "Clearly below H2O: at 10 % H2O (local statistics), on 1 of 1 texts with this policy."
    others = table[table["policy"].ne("h2o variant=local_statistics")].assign(source="ours")
    assert decay_table.answer(others).startswith("Clearly below H2O: at 10 % no policy (lowest: Random, 2.8")


def write_needles(root):
    """Write answers to two tasks. The full cache answers more than half of one task correctly."""
    answers = [
        (*arm, task, 1, example, metric, float(example < right))
        for task, right in {"needle_single_512": 3, "needle_multikey_512": 1}.items()
        for arm in (("full", None, None, 1.0), ("h2o", None, 0.5, 0.4))
        for example in range(4)
        for metric in ("string_match", "string_match_part")
    ]
    columns = ("policy", "alpha", "recent", "budget", "task", "task_version", "example", "metric", "value")
    write_csv(root / NEEDLES[0], columns, answers)


def test_windows_of_one_document_are_resampled_together(tmp_path):
    """Copies of a window add no information: the interval equals the interval with one window per document."""
    ends = {}
    for copies in (1, 4):
        path = make_run(tmp_path / str(copies), "decay", "random-small") / "prune.csv"
        documents = np.repeat(np.arange(25), copies)
        losses = np.random.default_rng(0).normal(size=25)[documents]
        rows = windows({("full", None, None, 1.0): 0 * losses, ("h2o", None, 0.5, 0.1): losses})
        columns = (*TABLES["prune.csv"].required, "document")
        write_csv(path, columns, [(*row, documents[row[5]]) for row in rows])
        table = configurations(Results(tmp_path / str(copies)), "decay").set_index("policy")
        ends[copies] = table.loc["h2o", ["increase_nats_low", "increase_nats", "increase_nats_high"]].tolist()
        assert table.loc["h2o", "windows"] == 25 * copies
    assert ends[1] == pytest.approx(ends[4])


def test_few_windows_have_a_student_interval(tmp_path):
    losses = np.array([0.1, 0.3, 0.2, 0.6, 0.4])
    path = make_run(tmp_path, "decay", "random-small") / "prune.csv"
    rows = windows({("full", None, None, 1.0): 0 * losses, ("h2o", None, 0.5, 0.1): losses})
    write_csv(path, TABLES["prune.csv"].required, rows)
    h2o = configurations(Results(tmp_path), "decay").set_index("policy").loc["h2o"]
    expected = student(losses)
    ends = h2o[["increase_nats_low", "increase_nats_high"]].tolist()
    assert ends == pytest.approx([expected.low, expected.high])


def test_the_best_alpha_per_window_bounds_the_gain_of_one_alpha_per_text(tmp_path):
    odd = np.array([0, 1, 0, 1, 0])
    rows = {("decay", alpha, 0.0, 0.4): HARD + 0.1 * (odd == index) for index, alpha in enumerate((0.2, 0.5))}
    rows |= {("decay", 1.0, 0.0, 0.4): HARD + 1, ("decay", 0.2, 0.5, 0.4): HARD + 0.01}
    rows |= {("h2o", None, 0.5, 0.4): HARD + 0.05}
    write_csv(make_run(tmp_path, "decay", "decoder") / "prune.csv", TABLES["prune.csv"].required, windows(rows))
    gains = decay_alphas_table.rows(Results(tmp_path), ("*",)).set_index("configuration")["minus_h2o_nats"]
    expected = {"H2O": 0, "alpha 0.2, as published": 0.01, BEST_OF_TEXT: -0.01, BEST_OF_WINDOW: -0.05}
    assert gains.to_dict() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "released", "scale", "label"),
    [
        ("wikitext-small", "small", "pretrained", "WikiText-2"),
        ("small", "small", "pretrained", "books"),
        ("text", None, "overnight", "books"),
        ("text", None, "laptop", "text"),
        ("novels", None, "overnight", "novels"),
    ],
)
def test_labels_of_data_sets(name, released, scale, label):
    assert data_set_label(name, released, scale) == label


def test_published_accuracies_have_budget_and_alpha():
    published = published_accuracies()
    pruned = published[published["series"] != "Full"]
    assert (pruned["budget"] == 0.4).all()
    assert pruned.groupby("series")["recent"].unique().map(list).to_dict() == {"Decay": [0.0], "H2O": [0.5]}
    assert set(published.loc[(published["series"] == "Decay") & published["alpha"].isna(), "run"]) == {
        "LLaMA-2-7B-chat"
    }


def test_the_minimum_full_score_is_the_same_constant_in_both_modules():
    assert MIN_FULL_SCORE_PERCENT == 100 * long_context.MIN_FULL_SCORE
