import csv
import re

import pytest
import torch

from formerlab.cache import (
    H2O,
    Decay,
    Full,
    KVCache,
    Local,
    PrunedCache,
    SnapKV,
    SpAtten,
    StreamingLLM,
    distance_to_ideal,
    simulate,
)
from formerlab.cache.measures import ideal_attention, means_over_kept, place_weights
from formerlab.commands.measures import _write_nothing
from formerlab.errors import UserError
from formerlab.evaluation.language.questions import Questions, load_tasks
from formerlab.evaluation.pruning import masks
from formerlab.evaluation.pruning.calibration import calibrated, head_distances
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.evaluation.pruning.masks import mask_dumps
from formerlab.evaluation.pruning.prune import FILES, PruneSweep, prune
from formerlab.evaluation.pruning.score_trajectories import ALPHAS, follow, mean_and_tenths
from formerlab.evaluation.pruning.sweep_extras import one_shot_losses
from formerlab.results.stages import STAGES
from formerlab.tasks.window_losses import mean_loss, window_batches, window_losses

SWEEP = PruneSweep(
    policies=(Local(), H2O(), SpAtten(), Decay(recent=0.5)),
    alphas=(0.0, 0.2),
    budgets=(0.4, 4),
    windows=5,
    context=20,
    mask_windows=2,
    question_limit=4,
    batch=4,
)


@pytest.fixture(scope="module")
def streams(stream):
    return {"valid": stream[:100], "test": stream}


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def out(model, streams, tokenizer, configs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prune")
    prune(model, streams, Questions(load_tasks(configs), tokenizer, limit=4), SWEEP, folder)
    return folder


def test_configurations_are_full_and_every_policy_at_every_budget_once():
    sweep = PruneSweep(policies=(Full(), Decay(), Local()), alphas=(0.2, 0.9))
    configurations = sweep.configurations((0.2, 8))
    assert configurations[0] == Configuration(Full(), 1.0)
    policies = (Decay(), Local(), Decay(alpha=0.9))
    assert configurations[1:] == [Configuration(policy, budget) for budget in (0.2, 8) for policy in policies]


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
def test_cells_tell_policies_apart(policy, cells):
    assert Configuration(policy, 0.4).cells() == (*cells, 0.4)


def test_every_arm_sees_the_same_windows(out):
    rows = read(out / "prune.csv")
    configurations = {}
    for row in rows:
        configurations.setdefault((row["policy"], row["alpha"], row["recent"], row["budget"]), []).append(row)
    assert len(configurations) == 1 + 2 * 6
    windows = [row["window"] for row in rows[:5]]
    for group in configurations.values():
        assert [row["window"] for row in group] == windows
        assert {row["tokens"] for row in group} == {"20"}


def test_losses_are_those_of_each_policy_alone(out, model, stream):
    rows = read(out / "prune.csv")
    configuration = Configuration(Decay(alpha=0.0), 4)
    windows = [int(row["window"]) for row in rows[:5]]
    expected = window_losses(model, stream, 20, attend_for=configuration.attend, windows=windows)
    found = [row for row in rows if (row["policy"], row["alpha"], row["budget"]) == ("decay", "0.0", "4")]
    assert [float(row["loss_nats"]) for row in found] == pytest.approx([row.loss_nats for row in expected], abs=1e-5)
    assert [float(row["realised_budget"]) for row in found] == [0.2] * 5


def test_budgets_are_realised_equally(out):
    held = {(row["policy"], row["alpha"], row["budget"]): row["realised_budget"] for row in read(out / "prune.csv")}
    assert held["full", "", "1.0"] == "1.0"
    for policy, alpha in (("local", ""), ("h2o", ""), ("decay", "0.0"), ("decay", "0.2")):
        assert held[policy, alpha, "0.4"] == "0.4"
        assert held[policy, alpha, "4"] == "0.2"


def test_pruned_losses_equal_those_of_a_cache_that_evicts(out, model, stream):
    rows = read(out / "prune.csv")
    window = int(rows[0]["window"])
    tokens = torch.from_numpy(stream[window * 20 : window * 20 + 21].astype("int64"))[None]
    found = {(row["policy"], row["alpha"], row["budget"], row["window"]): float(row["loss_nats"]) for row in rows}
    for key, cache in {
        ("full", "", "1.0"): KVCache(),
        ("h2o", "", "4"): PrunedCache(H2O(), 4),
        ("decay", "0.2", "4"): PrunedCache(Decay(), 4),
    }.items():
        with torch.no_grad():
            logits = model(tokens[:, :-1], attend=cache)[0]
        loss = torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).item()
        assert found[*key, str(window)] == pytest.approx(loss, abs=1e-5)


def test_questions_are_answered_under_every_policy(out, model, tokenizer, configs):
    rows = read(out / "prune_questions.csv")
    configurations = {(row["policy"], row["alpha"], row["recent"], row["budget"]) for row in rows}
    assert len(configurations) == 1 + 6
    assert len(rows) == len(configurations) * 4 * 3
    full = [row for row in rows if row["policy"] == "full"]
    expected = Questions(load_tasks(configs), tokenizer, limit=4).answers(model)
    assert [(row["example"], row["metric"], float(row["value"])) for row in full] == [
        (str(row.example), row.metric, row.value) for row in expected
    ]
    held = {float(row["realised_budget"]) for row in rows if row["policy"] == "h2o" and row["budget"] == "0.4"}
    assert all(0.3 < budget < 0.7 for budget in held)  # answers of a few tokens round far


def test_measures_of_masks(out):
    rows = read(out / "prune_masks.csv")
    assert len(rows) == 12 * 2 * 6
    assert {row["metric"] for row in rows} == {
        "early_share",
        "early_share_10",
        "mean_position",
        "recent_share",
        "distance_to_ideal",
        "distance_to_ideal_without_first",
    }
    local = [row for row in rows if row["policy"] == "local" and row["budget"] == "4"]
    assert {float(row["value"]) for row in local if row["metric"] == "early_share"} == {0.0}
    assert {float(row["value"]) for row in local if row["metric"] == "recent_share"} == {1.0}
    assert all(0 <= float(row["value"]) <= 1 for row in rows)


def test_configurations_of_a_budget_share_its_ideal_and_are_as_far_from_it_as_alone(model, stream, monkeypatch):
    made, layers = [], []

    def counted(probabilities, budget):
        made.append(budget)
        return ideal_attention(probabilities, budget)

    monkeypatch.setattr(masks, "ideal_attention", counted)
    pairs = [Configuration(policy, budget) for budget in (4, 0.4) for policy in (Local(), H2O(), Decay())]
    rows = list(masks.mask_measures(model, stream, 20, [0, 3], pairs))
    assert sorted(made) == [0.4] * model.spec.layers + [4] * model.spec.layers
    ((_, tokens),) = window_batches(stream, 20, [0, 3], 2)
    masks.observe_unpruned(model, tokens, lambda _, seen: layers.append(seen))
    for policy, budget in pairs:
        pruned = [simulate(policy, seen.logits, budget)[0] for seen in layers]
        alone = [
            distance_to_ideal(*both, budget) for both in zip(pruned, (s.probabilities for s in layers), strict=True)
        ]
        found = [
            row.value for row in rows if row.configuration == (policy, budget) and row.metric == "distance_to_ideal"
        ]
        assert found == torch.stack(alone).mean(0).tolist()


def test_a_diverged_run_has_the_same_files_without_rows(out, tmp_path):
    _write_nothing(STAGES["prune"], tmp_path)
    empty = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert empty == {path.name: path.read_text().splitlines()[0] + "\n" for path in out.iterdir()}
    assert set(empty) == set(FILES)


def test_what_is_not_asked_for_has_no_rows(model, streams, tmp_path, capfd):
    sweep = PruneSweep(policies=(Local(),), budgets=(2,), windows=2, context=8, mask_windows=0, questions=False)
    prune(model, streams, None, sweep, tmp_path, label="prune s/r/seed0")
    rows = {path.name: len(read(path)) for path in tmp_path.iterdir()}
    assert rows == dict.fromkeys(FILES, 0) | {"prune.csv": 4}
    assert "prune s/r/seed0  window 4/4" in capfd.readouterr().err


def test_every_part_says_how_far_it_is(model, streams, tmp_path, capfd):
    once = SWEEP.model_copy(update={
        "questions": False, "windows": 3, "alphas": (0.2,), "calibration_windows": 2, "calibration_budgets": (0.2,),
        "score_windows": 1, "one_shot": (Local(),), "one_shot_budgets": (0.5,),
    })  # fmt: skip
    prune(model, streams, None, once, tmp_path, label="prune it")
    lines, layers = capfd.readouterr().err, model.spec.layers
    for part, total in (("masks", 2 * layers), ("alpha per head", 2 * 2 + 3 * 3), ("scores", layers), ("one shot", 6)):
        assert re.search(rf"prune it, {part}  .* {total}/{total} ", lines), part


def test_windows_longer_than_the_context_are_refused(model, streams, tmp_path):
    with pytest.raises(UserError, match="context=64"):
        prune(model, streams, None, PruneSweep(context=64), tmp_path)


def test_the_mean_position_of_an_even_choice_is_the_middle():
    def mean_position(visible):
        return means_over_kept(visible, place_weights(9, visible.device).unsqueeze(-1)).item()

    square = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    assert mean_position(square) == pytest.approx(0.5)
    assert mean_position(square & (torch.arange(9) < 1)) < 0.15
    assert mean_position(square & (torch.arange(9)[:, None] - torch.arange(9) <= 1)) > 0.85


def test_alpha_of_each_head_is_the_best_for_it(model, streams):
    windows, alphas = {"valid": [0, 1], "test": [3, 4]}, (0.0, 0.3, 1.0)
    chosen, rows = calibrated(model, streams, 20, windows, alphas, 4)
    own, by_distance, by_loss = chosen
    found = head_distances(model, streams["valid"], 20, windows["valid"], alphas, 4).by_head
    for layer, head in ((layer, head) for layer in range(2) for head in range(2)):
        assert own.distances[layer][head] == pytest.approx(found[:, layer, head].min().item())
        assert alphas[int(found[:, layer, head].argmin())] == own.alphas[layer][head]
    assert len({alpha for row in by_distance.alphas for alpha in row}) == 1
    assert sum(map(sum, own.distances)) <= sum(map(sum, by_distance.distances))
    losses = {
        alpha: mean_loss(
            window_losses(
                model, streams["valid"], 20, attend_for=Configuration(Decay(alpha=alpha), 4).attend, windows=[0, 1]
            )
        )
        for alpha in alphas
    }
    assert by_loss.alphas[0][0] == min(losses, key=losses.get)
    single = [row for row in rows if row[1] == "single_by_loss"]
    alone = window_losses(
        model,
        streams["test"],
        20,
        attend_for=Configuration(Decay(alpha=by_loss.alphas[0][0]), 4).attend,
        windows=[3, 4],
    )
    assert [row[5] for row in single] == pytest.approx([loss.loss_nats for loss in alone], abs=1e-5)
    assert {row[2] for row in rows} == {0.2}


def test_mask_dumps_show_what_each_query_sees(model, stream):
    rows = list(mask_dumps(model, stream, 20, 0, (0.2,)))
    assert len(rows) == 5 * 20
    for policy, *_, query, kept in rows:
        assert kept[query] == "1"
        assert "1" not in kept[query + 1 :]
        assert kept.count("1") == min(query + 1, 5)
        if policy == "local":
            assert kept[max(0, query - 4) : query + 1] == "1" * min(query + 1, 5)


def test_scores_are_weighted_means_of_attention():
    attention = torch.rand(1, 1, 12, 12, dtype=torch.float64).tril()
    attention /= attention.sum(-1, keepdim=True)
    found = follow(attention)
    for index, alpha in enumerate(ALPHAS):
        for key, query in ((0, 6), (3, 8), (5, 11)):
            weights = torch.tensor([alpha ** (query - step) for step in range(key, query + 1)], dtype=torch.float64)
            mean = (weights * attention[0, 0, key : query + 1, key]).sum() / weights.sum()
            assert found.scores[index][0, query - 6, key].item() == pytest.approx(mean.item())
    assert torch.equal(found.scores[0][0], attention[0, 0, 6:, :6])
    kept = (found.missed[0] == 0).sum(-1)
    assert (kept <= torch.tensor([round(0.4 * (query + 1)) for query in range(6, 12)])).all()


def test_one_shot_compression_spares_the_prompt(model, stream):
    configurations = [Configuration(SnapKV(), 0.4), Configuration(Decay(), 1.0)]
    rows = list(one_shot_losses(model, stream, 20, [1, 3], configurations, batch=2))
    found = {(row[0], row[6]): row[8] for row in rows}
    assert {row[4:6] for row in rows if row[0] == "snapkv"} == {(0.4, 10)}
    for window in (1, 3):
        assert found["decay", window] == pytest.approx(found["full", window], abs=1e-5)
        tokens = torch.from_numpy(stream[window * 20 : window * 20 + 21].astype("int64"))[None]
        with torch.no_grad():
            logits = model(tokens[:, :-1])[0, 10:]
        loss = torch.nn.functional.cross_entropy(logits, tokens[0, 11:]).item()
        assert found["full", window] == pytest.approx(loss, abs=1e-5)


def test_quantiles_of_scores_are_those_of_all_values():
    """Of 1.5 million values in rising order: the first million alone has other quantiles."""
    last = 1_500_000
    found = mean_and_tenths(torch.arange(last + 1, dtype=torch.float32))
    assert found == pytest.approx((0.5 * last, 0.1 * last, 0.9 * last))
