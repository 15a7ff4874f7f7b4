import csv
import re

import pytest
import torch
from pydantic import ValidationError

from formerlab.cache import (
    H2O,
    Decay,
    Full,
    HeadAdaptive,
    KVCache,
    Local,
    PrunedCache,
    Pyramid,
    SnapKV,
    SpAtten,
    StreamingLLM,
    distance_to_ideal,
    ideal_attention,
    simulate,
)
from formerlab.evaluation.language.harness import load_tasks
from formerlab.evaluation.language.questions import Questions
from formerlab.evaluation.pruning.calibration import calibrate, head_distances
from formerlab.evaluation.pruning.masks import ALPHAS, mask_dumps, mask_measures, score_trajectories, track_scores
from formerlab.evaluation.pruning.passkey import Passkey
from formerlab.evaluation.pruning.prune import PruneSweep, one_shot_losses, prune
from formerlab.evaluation.pruning.windows import Configuration, Windows
from formerlab.tasks.window_losses import mean_loss, window_losses

POLICIES = {"policies": (Local(), H2O(), SpAtten(), Decay(recent=0.5)), "alphas": (0.0, 0.2), "budgets": (0.4, 4)}
SWEEP = PruneSweep(**POLICIES, windows=5, context=20, mask_windows=2, question_limit=4, batch=4)


@pytest.fixture(scope="module")
def streams(stream):
    return {"valid": stream[:100], "test": stream}


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def out(model, streams, tokenizer, configs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prune")
    documents = range(100, 200)  # index of the window + 100
    prune(model, streams, Questions(load_tasks(configs), tokenizer, limit=4), SWEEP, folder, documents=documents)
    return folder


def test_rows_of_windows_contain_the_document(out):
    for name in ("prune.csv", "prune_masks.csv"):
        assert all(int(row["document"]) == int(row["window"]) + 100 for row in read(out / name))


@pytest.mark.parametrize(
    ("policy", "cells"),
    [
        (Full(), ("full", None, None)),
        (Decay(alpha=0.3, recent=0.5), ("decay", 0.3, 0.5)),
        (Decay(sink=2), ("decay sink=2", 0.2, 0.0)),
        (H2O(variant="local_statistics"), ("h2o variant=local_statistics", None, 0.5)),
        (StreamingLLM(sink=2), ("streaming_llm sink=2", None, None)),
    ],
)
def test_cells_distinguish_policies(policy, cells):
    assert Configuration(policy, 0.4).cells() == (*cells, 0.4)


@pytest.mark.parametrize(
    ("settings", "fields", "message"),
    [
        (PruneSweep, {"policies": (SnapKV(),)}, "SnapKV.*compresses only once"),
        (Passkey, {"policies": (SnapKV(),)}, "SnapKV.*compresses only once"),
        (PruneSweep, {"one_shot": (SpAtten(),)}, "SpAtten.*cannot compress"),
        (PruneSweep, {"one_shot": (StreamingLLM(positions="reindexed"),)}, "compression keeps positions"),
    ],
)
def test_policies_that_a_stage_cannot_run_are_refused(settings, fields, message):
    with pytest.raises(ValidationError, match=message):
        settings(**fields)


def test_losses_equal_separate_runs_of_each_policy(out, model, stream):
    rows = read(out / "prune.csv")
    configuration = Configuration(Decay(alpha=0.0), 4)
    windows = [int(row["window"]) for row in rows[:5]]
    expected = window_losses(model, stream, 20, attend_for=configuration.attend, windows=windows)
    rows = [row for row in rows if (row["policy"], row["alpha"], row["budget"]) == ("decay", "0.0", "4")]
    assert [float(row["loss_nats"]) for row in rows] == pytest.approx([row.loss_nats for row in expected], abs=1e-5)
    assert [float(row["realised_budget"]) for row in rows] == [0.2] * 5


def test_pruned_losses_equal_decoding_with_an_evicting_cache(out, model, stream):
    rows = read(out / "prune.csv")
    window = int(rows[0]["window"])
    tokens = torch.from_numpy(stream[window * 20 : window * 20 + 21].astype("int64"))[None]
    losses = {(row["policy"], row["alpha"], row["budget"], row["window"]): float(row["loss_nats"]) for row in rows}
    for key, cache in {
        ("full", "", "1.0"): KVCache(),
        ("h2o", "", "4"): PrunedCache(H2O(), 4),
        ("decay", "0.2", "4"): PrunedCache(Decay(), 4),
    }.items():
        with torch.no_grad():
            logits = model(tokens[:, :-1], attend=cache)[0]
        loss = torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).item()
        assert losses[*key, str(window)] == pytest.approx(loss, abs=1e-5)


def test_questions_are_answered_under_every_policy(out, model, tokenizer, configs):
    rows = read(out / "prune_questions.csv")
    configurations = {(row["policy"], row["alpha"], row["recent"], row["budget"]) for row in rows}
    assert len(configurations) == 1 + 6
    assert len(rows) == len(configurations) * 4 * 3
    full = [row for row in rows if row["policy"] == "full"]
    expected = Questions(load_tasks(configs), tokenizer, limit=4).scores(model)
    assert [(row["example"], row["metric"], float(row["value"])) for row in full] == [
        (str(row.example), row.metric, row.value) for row in expected
    ]
    sizes = {float(row["realised_budget"]) for row in rows if row["policy"] == "h2o" and row["budget"] == "0.4"}
    assert all(0.3 < size < 0.7 for size in sizes)  # budgets of short sequences are rounded to whole keys


def test_measures_equal_separate_runs_of_each_configuration(model, stream):
    layers = []
    windows = Windows(model, stream, 20, [0, 3])
    pairs = [Configuration(policy, budget) for budget in (4, 0.4) for policy in (Local(), H2O(), Decay())]
    rows = list(mask_measures(windows, pairs))
    list(windows.observe_layers(lambda _, layer: layers.append(layer)))
    for policy, budget in pairs:
        expected = [
            distance_to_ideal(simulate(policy, layer.logits, budget)[0], ideal_attention(layer.probabilities, budget))
            for layer in layers
        ]
        cells = (*Configuration(policy, budget).cells(), "distance_to_ideal")
        distances = [row[6] for row in rows if (*row[:4], row[5]) == cells]
        assert distances == torch.stack(expected).mean(0).tolist()


def test_every_measurement_prints_progress(model, streams, tmp_path, capfd):
    sweep = SWEEP.model_copy(update={
        "questions": False, "windows": 3, "alphas": (0.2,), "calibration_windows": 2, "calibration_budgets": (0.2,),
        "score_windows": 1, "one_shot": (Local(),), "one_shot_budgets": (0.5,),
    })  # fmt: skip
    prune(model, streams, None, sweep, tmp_path, label="prune it")
    lines = capfd.readouterr().err
    for name, total in (("masks", 2), ("alpha per head", 2 * 2 + 3 * 3), ("scores", 1), ("one shot", 3)):
        assert re.search(rf"prune it, {name}  .* {total}/{total} ", lines), name


def test_each_head_has_its_best_alpha(model, streams):
    alphas = (0.0, 0.3, 1.0)
    valid, test = Windows(model, streams["valid"], 20, [0, 1]), Windows(model, streams["test"], 20, [3, 4])
    chosen, tested = calibrate(valid, test, alphas, 4)
    assert len(chosen) == 3 * 2 * 2
    distances = head_distances(valid, alphas, 4)
    by_choice = {
        name: {row[2:4]: row[4:] for row in chosen if row[1] == name}
        for name in ("per_head", "single_by_distance", "single_by_loss")
    }
    for (layer, head), (alpha, distance) in by_choice["per_head"].items():
        assert distance == pytest.approx(distances[:, layer, head].min().item())
        assert alpha == alphas[int(distances[:, layer, head].argmin())]
    per_head, single = (
        sum(distance for _, distance in by_choice[name].values()) for name in ("per_head", "single_by_distance")
    )
    assert per_head <= single
    losses = {alpha: mean_loss(valid.losses(Configuration(Decay(alpha=alpha), 4).attend)) for alpha in alphas}
    best = min(losses, key=losses.get)
    assert {alpha for alpha, _ in by_choice["single_by_loss"].values()} == {best}
    alone = test.losses(Configuration(Decay(alpha=best), 4).attend)
    single = [row[5] for row in tested if row[1] == "single_by_loss"]
    assert single == pytest.approx([loss.loss_nats for loss in alone], abs=1e-5)
    assert {row[2] for row in tested} == {0.2}


def test_mask_dumps_show_what_each_query_sees(model, stream):
    rows = list(mask_dumps(Windows(model, stream, 20, [0]), (0.2,)))
    assert len(rows) == 5 * 20
    for policy, *_, query, visible in rows:
        assert visible[query] == "1"
        assert "1" not in visible[query + 1 :]
        assert visible.count("1") == min(query + 1, 5)
        if policy == "local":
            assert visible[max(0, query - 4) : query + 1] == "1" * min(query + 1, 5)


def test_scores_are_weighted_means_of_attention(model, stream):
    attention = torch.rand(1, 1, 12, 12, dtype=torch.float64).tril()
    attention /= attention.sum(-1, keepdim=True)
    scores, missed, _ = track_scores(attention)
    for index, alpha in enumerate(ALPHAS):
        for key, query in ((0, 6), (3, 8), (5, 11)):
            weights = torch.tensor([alpha ** (query - step) for step in range(key, query + 1)], dtype=torch.float64)
            mean = (weights * attention[0, 0, key : query + 1, key]).sum() / weights.sum()
            assert scores[index][0, query - 6, key].item() == pytest.approx(mean.item())
    retained = (missed[0] == 0).sum(-1)
    assert (retained <= torch.tensor([round(0.4 * (query + 1)) for query in range(6, 12)])).all()
    rows = list(score_trajectories(Windows(model, stream, 20, [0, 2])))
    assert len(rows) == len(ALPHAS) * 2 * 10
    assert all(0 <= low <= high <= 1 and 0 <= missed <= 1 for *_, low, high, missed in rows)
    odd = list(score_trajectories(Windows(model, stream, 15, [0])))
    assert {query for _, _, query, *_ in odd} == {*range(7, 15)}


@pytest.mark.parametrize(
    "policy", [HeadAdaptive(policy=H2O(), safeguard=0.0), Pyramid(policy=H2O(), layers=2, last=0.5)]
)
def test_the_cache_size_of_allocation_policies_is_the_mean_over_layers_without_padding(model, stream, policy):
    windows = Windows(model, stream, 20, [1, 3], batch=2)
    rows = list(one_shot_losses([Configuration(policy, 0.4)], windows))
    assert [row[4] for row in rows if row[0] != "full"] == [0.4, 0.4]


def test_losses_of_eviction_after_every_token_are_the_losses_of_a_cache_that_evicts(model, stream):
    windows = Windows(model, stream, 20, [1, 3], batch=2)
    rows = [row for row in one_shot_losses([], windows, [Configuration(H2O(), 0.4)]) if row[0] != "full"]
    assert {row[:6] for row in rows} == {("every_token(h2o)", None, 0.5, 0.4, 0.4, 10)}
    for *_, window, count, loss in rows:
        tokens = torch.from_numpy(stream[window * 20 : window * 20 + 21].astype("int64"))[None]
        cache = PrunedCache(H2O(), 4, position=model.position)
        with torch.no_grad():
            steps = [model(tokens[:, step : step + 1], attend=cache, start=step)[0] for step in range(20)]
        expected = torch.nn.functional.cross_entropy(torch.cat(steps)[10:], tokens[0, 11:]).item()
        assert (count, loss) == (10, pytest.approx(expected, abs=1e-5))


def test_one_shot_losses_average_the_tokens_after_the_prompt(model, stream):
    configurations = [Configuration(SnapKV(), 0.4), Configuration(Decay(), 1.0)]
    rows = list(one_shot_losses(configurations, Windows(model, stream, 20, [1, 3], batch=2)))
    losses = {(row[0], row[6]): row[8] for row in rows}
    assert {row[4:6] for row in rows if row[0] == "snapkv"} == {(0.4, 10)}
    for window in (1, 3):
        assert losses["decay", window] == pytest.approx(losses["full", window], abs=1e-5)
        tokens = torch.from_numpy(stream[window * 20 : window * 20 + 21].astype("int64"))[None]
        with torch.no_grad():
            logits = model(tokens[:, :-1])[0, 10:]
        loss = torch.nn.functional.cross_entropy(logits, tokens[0, 11:]).item()
        assert losses["full", window] == pytest.approx(loss, abs=1e-5)
