"""n-gram models match their definition. The stage fits n-gram models and a linear probe."""

import csv
import math
from collections import Counter

import numpy as np
import pytest

from formerlab.data import BytePairs, Files, TextData, prepare
from formerlab.data import prepare as prepare_images
from formerlab.data.images import ImageData
from formerlab.errors import UserError
from formerlab.evaluation.baselines import Baselines, measure
from formerlab.evaluation.language.ngram import FALLBACK, NGram, discounts
from formerlab.evaluation.measurement import MeasuredRun
from formerlab.models import Decoder
from formerlab.models.vision import VisionTransformer
from formerlab.report.catalogue import catalogue, load_rows
from formerlab.results.read import Results
from formerlab.tasks import Classification, LanguageModeling, Translation
from formerlab.training.run import Run

VOCABULARY = 7
STREAM = np.random.default_rng(0).choice(6, size=400, p=[0.4, 0.2, 0.2, 0.1, 0.06, 0.04])


def reference_probability(stream, order):
    """Return the function P(word | history) by the definition of Chen and Goodman, with dictionaries."""
    grams = [Counter(tuple(stream[i : i + n]) for i in range(len(stream) - n + 1)) for n in range(1, order + 1)]
    counts = [Counter({gram: 0 for gram in grams[n]}) for n in range(order - 1)] + [grams[-1]]
    for n in range(order - 1):
        counts[n].update(gram[1:] for gram in grams[n + 1])
    by_order = [(0.0, *discounts(list(count.values()))) for count in counts]

    def probability(word, history):
        lower = probability(word, history[1:]) if history else 1 / VOCABULARY
        n = len(history)
        followers = {gram[-1]: count for gram, count in counts[n].items() if gram[:-1] == history}
        if not (total := sum(followers.values())):
            return lower
        discount = {follower: by_order[n][min(count, 3)] for follower, count in followers.items()}
        return (followers.get(word, 0) - discount.get(word, 0)) / total + sum(discount.values()) / total * lower

    return probability


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_equal_the_definition(order):
    model, probability = (
        NGram(STREAM.astype(np.uint16), order, VOCABULARY),
        reference_probability(STREAM.tolist(), order),
    )
    windows = np.random.default_rng(1).integers(0, VOCABULARY, size=(6, 9))
    expected = [
        [math.log(probability(row[i], tuple(row[max(0, i - order + 1) : i]))) for i in range(1, 9)]
        for row in windows.tolist()
    ]
    assert model.log_probabilities(windows) == pytest.approx(np.array(expected), abs=1e-12)


def test_discounts_equal_equation_26_of_chen_and_goodman():
    counts = [1] * 8 + [2] * 4 + [3] * 2 + [4]
    assert discounts(counts) == pytest.approx((1 - 2 * 0.5 * 4 / 8, 2 - 3 * 0.5 * 2 / 4, 3 - 4 * 0.5 * 1 / 2))
    assert discounts([1, 1, 3]) == FALLBACK


def measured(task, model, data, folder):
    run = Run(study="small", name="run", seed=0, model=model, task=task, steps=1)
    return MeasuredRun(spec=run, model=None, device="cpu", folder=folder, data=data, label="floors")


def rows(folder):
    with open(folder / "floors.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_longer_context_lowers_the_loss(tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "lines.txt").write_text("\n".join(f"{n} " + "ab" * random.integers(5, 20) for n in range(200)))
    source = Files(paths=(str(tmp_path / "lines.txt"),), documents="line")
    spec = TextData(source=source, tokenizer=BytePairs(vocabulary=257), valid_share=0.1, test_share=0.1, questions=0)
    prepare("text", spec, tmp_path / "data")
    run = measured(
        LanguageModeling(context=16), Decoder(vocabulary=257, width=8, heads=1, context=16), tmp_path / "data", tmp_path
    )
    measure(run, Baselines(orders=(1, 3)))
    losses = {}
    for row in rows(tmp_path):
        losses.setdefault(row["floor"], []).append((int(row["tokens"]), float(row["loss_nats"])))
    tokens, means = zip(*losses["unigram"], strict=True)
    unigram = np.average(means, weights=tokens)
    trigram = np.average([mean for _, mean in losses["3-gram"]], weights=tokens)
    assert trigram < 0.7 * unigram < 0.7 * math.log(257)
    assert len(losses["unigram"]) == len(losses["3-gram"])
    assert run.notes["tokens"] > 1000


def test_a_linear_probe_is_better_than_chance(tmp_path):
    prepare_images("digits", ImageData(), tmp_path / "data")
    model = VisionTransformer(image=8, channels=1, classes=10, patch=4, layers=1, width=8, heads=1)
    run = measured(Classification(), model, tmp_path / "data", tmp_path)
    measure(run, Baselines(strengths=(1e-2,)))
    probe_rows = rows(tmp_path)
    assert {row["floor"] for row in probe_rows} == {"linear probe"}
    accuracy = np.mean([int(row["rank"]) == 0 for row in probe_rows])
    assert accuracy > 0.85
    assert np.mean([float(row["loss_nats"]) for row in probe_rows]) < 0.6


def test_translation_has_no_baseline():
    run = Run.model_construct(name="base", task=Translation.model_construct())
    message = r"runs: 'base' has task.kind=translation; choose runs that were trained on text or images"
    with pytest.raises(UserError, match=message):
        Baselines().settings_for_run(run, questions=False)


def test_baselines_are_listed_before_the_runs_of_a_table(tmp_path):
    from fixtures.rows import make_run, write_csv

    folder = make_run(tmp_path, "tokenformer", "transformer-1")
    columns = ("floor", "window", "tokens", "loss_nats", "rank")
    write_csv(folder / "floors.csv", columns, [("unigram", 0, 3, 6.0, None), ("unigram", 1, 1, 2.0, None)])
    table = load_rows(catalogue()["tokenformer_table"], Results(tmp_path)).query("source == 'ours'")
    assert table["run"].tolist() == ["unigram on text", "transformer-1"]
    assert table["loss_nats"].iloc[0] == 5.0
