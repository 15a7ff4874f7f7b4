"""The runs of the Tokenformer study at scales workstation and paper: conditions for the comparisons of the paper."""

from pathlib import Path

import pytest
from test_overnight import chain_flops

from formerlab.plan.resolve import resolve_study
from formerlab.plan.sources import read_sources

ROOT = Path(__file__).resolve().parents[2]
LARGE = ("workstation", "paper")


@pytest.fixture(scope="module", params=LARGE)
def runs(request):
    """Return the runs of a scale by name, with one seed each."""
    sources = read_sources(ROOT, {"scale": request.param, "studies": ["tokenformer"]})
    return {run.name: run for run in resolve_study("tokenformer", sources)}


def test_training_from_scratch_has_the_flops_of_the_chain(runs):
    scratch = [name for name in runs if name.startswith("tokenformer-scratch-")]
    assert "tokenformer-scratch-4" in scratch
    for name in scratch:
        chain = chain_flops(runs, f"grown-random-sqrt-{name[-1]}")
        assert runs[name].flops == pytest.approx(chain, rel=5e-4), name
        assert runs[name].model == runs[f"grown-random-sqrt-{name[-1]}"].model


def test_sizes_are_equal(runs):
    embedding = runs["tokenformer-1"].model.width == 768  # at scale paper, sizes include the embedding
    for size in (2, 3, 4):
        grown = runs[f"grown-random-sqrt-{size}"].model.params(embedding=embedding)
        for name in (f"transformer-{size}", f"transformer-short-{size}", f"net2net-{size}", f"hypercloning-{size}"):
            if name in runs:
                assert runs[name].model.params(embedding=embedding) == pytest.approx(grown, rel=0.03), name


def test_a_stage_has_a_tenth_of_the_full_budget(runs):
    full = runs["transformer-4"].tokens
    assert runs["tokenformer-1"].tokens == full
    for size in (2, 3, 4):
        stage = runs[f"grown-random-sqrt-{size}"].tokens
        assert 10 * stage == full == 10 * runs[f"transformer-short-{size}"].tokens
        if f"grown-half-{size}" in runs:
            assert 2 * runs[f"grown-half-{size}"].tokens == stage == runs[f"grown-double-{size}"].tokens / 2


def test_methods_that_grow_width_train_on_equally_many_tokens(runs):
    cloned = "hypercloning-3"
    for name in ("net2net-pad-2", "net2net-2", "net2net-3"):
        assert runs[name].tokens == runs["net2net-pad-3"].tokens
    if cloned in runs:  # HyperCloning reaches this size in a single growth step
        assert runs[cloned].init == "transformer-1"
        assert runs[cloned].tokens == runs["net2net-2"].tokens + runs["net2net-3"].tokens


def test_growth_variants_differ_only_in_their_growth(runs):
    published = runs["grown-random-sqrt-2"]
    ways = [run for name, run in runs.items() if name.startswith(("grown-random-", "grown-zero-")) and name[-1] == "2"]
    assert len(ways) == 8
    for run in ways:
        same = {"name": run.name, "growth": run.growth, "model": run.model}
        assert published.model_copy(update=same) == run
        assert run.model.params() == published.model.params()


def test_continued_training_has_equal_settings_in_all_arms(runs):
    arms = {name: run for name, run in runs.items() if name.startswith("continued-")}
    assert {"continued-tokenformer", "continued-net2net-pad"} <= arms.keys()
    reference = arms["continued-tokenformer"]
    for run in arms.values():
        assert run.data == "second"
        assert (run.steps, run.task, run.optimizer) == (reference.steps, reference.task, reference.optimizer)
        assert run.schedule.kind == "constant"
    assert arms["continued-tokenformer"].growth.tau == "keep"
    for family in ("tokenformer", "transformer"):
        assert arms[f"continued-{family}-ungrown"].growth is None


def test_arms_with_the_same_learning_rates_differ_only_in_the_model(runs):
    for rate in ("low", "middle", "high"):
        arms = [runs[f"{arm}-{rate}"] for arm in ("modern", "classic", "matched")]
        assert len({(run.steps, run.optimizer, run.schedule, run.task) for run in arms}) == 1
        sizes = [run.model.params(embedding=False) for run in arms]
        assert max(sizes) / min(sizes) < 1.03
    rates = [runs[f"modern-{rate}"].optimizer.lr for rate in ("low", "middle", "high")]
    assert rates == sorted(set(rates))
