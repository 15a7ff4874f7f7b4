"""The Transformer study at scale paper: rows, sizes, schedule and token counts of the published runs."""

from pathlib import Path

import pytest

from formerlab.plan.resolve import resolve_study
from formerlab.plan.sources import read_sources

ROOT = Path(__file__).parents[2]

TABLE_3 = {
    *("base", "heads-1", "heads-4", "heads-16", "heads-32", "key-16", "key-32", "layers-2", "layers-4", "layers-8"),
    *("width-256", "width-1024", "hidden-1024", "hidden-4096", "dropout-0", "dropout-2", "smoothing-0", "smoothing-2"),
    *("positions-learned", "big"),
}
MILLIONS = {"layers-2": 33.6, "width-256": 26.8, "width-1024": 163.8, "hidden-4096": 88.2, "key-16": 56.0}


def runs(scale):
    sources = read_sources(ROOT, {"scale": scale, "studies": ["transformer"], "seeds": [0]})
    return {run.name: run for run in resolve_study("transformer", sources)}


@pytest.fixture(scope="module")
def paper():
    return runs("paper")


def test_every_row_of_table_3_is_a_run(paper):
    assert paper.keys() == TABLE_3 | {"base-averaged"}


def test_sizes_are_as_published(paper):
    for name, millions in MILLIONS.items():
        assert paper[name].model.params() / 1e6 == pytest.approx(millions, abs=0.051)
    assert all(run.model.vocabulary == 37000 for run in paper.values())


@pytest.mark.parametrize(
    ("name", "peak", "last"), [("base", 6.99e-4, 1.40e-4), ("big", 4.94e-4, None), ("width-256", 9.88e-4, None)]
)
def test_the_learning_rate_is_as_published(paper, name, peak, last):
    run = paper[name]
    for step in (1, 100, 4000, run.steps):
        published = run.model.width**-0.5 * min(step**-0.5, step * 4000**-1.5)
        rate = run.optimizer.lr * run.schedule.factor(step - 1, run.steps)
        assert rate == pytest.approx(published, rel=1e-3)
    assert run.optimizer.lr == pytest.approx(peak)
    if last is not None:
        assert run.optimizer.lr * run.schedule.factor(run.steps - 1, run.steps) == pytest.approx(last, rel=5e-3)


def test_steps_tokens_and_averages_are_as_published(paper):
    assert paper["base"].steps == 100_000
    assert paper["big"].steps == 300_000
    assert paper["base"].tokens == 100_000 * 25_000
    assert {paper[name].task.average_last for name in TABLE_3 - {"big"}} == {0}
    assert (paper["base-averaged"].task.average_last, paper["big"].task.average_last) == (5, 20)
    assert paper["smoothing-0"].task.label_smoothing == 0.0
    assert (paper["dropout-0"].model.dropout, paper["big"].model.dropout) == (0.0, 0.3)
    optimizer = paper["base"].optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.weight_decay) == (0.9, 0.98, 1e-9, 0.0)
