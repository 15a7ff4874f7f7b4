"""Scale overnight: conditions for fair comparisons, as designed in docs/evidence.md."""

import pytest
from fixtures.checkout import ROOT

from formerlab.plan.resolve import resolve_study
from formerlab.plan.sources import read_sources
from formerlab.report.studies.tokenformer import FROM_SCRATCH

ARMS = ("matched", "modern", "classic")
PARENT = "long-matched-chosen"


@pytest.fixture(scope="module")
def studies():
    """Return the runs of all seeds by study."""
    sources = read_sources(ROOT, {"scale": "overnight"})
    return {study: resolve_study(study, sources) for study in sources.studies}


@pytest.fixture(scope="module")
def runs(studies):
    """Return the runs of the Tokenformer study by name, with the first seed only."""
    return {run.name: run for run in reversed(studies["tokenformer"])}


def seeds(runs, name):
    return [run.seed for run in runs if run.name == name]


def chain_flops(runs, name):
    run = runs[name]
    return run.flops + (chain_flops(runs, run.init) if run.init else 0)


def test_main_results_have_five_seeds_and_comparisons_at_least_three(studies):
    tokenformer_runs = studies["tokenformer"]
    assert [seeds(tokenformer_runs, f"{arm}-chosen") for arm in ARMS] == [[0, 1, 2, 3, 4]] * 3
    for study, runs in studies.items():
        for name in {run.name for run in runs if not run.name.startswith(("envelope-", "annealed-large-"))}:
            searched = name.startswith(("annealed-whole-", "annealed-shallow-")) or "-long-" in name
            assert len(seeds(runs, name)) >= (1 if searched else 3), (study, name)


@pytest.mark.parametrize(
    ("study", "chosen", "searched"),
    [
        ("tokenformer", "annealed-trained-on-long", "annealed-trained-on-long-"),
        ("tokenformer", "annealed-random-sqrt-long", "annealed-random-sqrt-long-"),
        ("tokenformer", "annealed-zero-keep-long", "annealed-zero-keep-long-"),
        ("denseformer", "annealed-plain-24", "annealed-whole-plain-"),
        ("denseformer", "annealed-dwa-1x1-24", "annealed-whole-dwa-"),
        ("denseformer", "annealed-dwa-4x5-24", "annealed-whole-sparse-"),
    ],
)
def test_searched_runs_differ_from_the_arm_only_in_the_learning_rate(studies, study, chosen, searched):
    arm = next(run for run in studies[study] if run.name == chosen)
    others = {run.name: run for run in studies[study] if run.name.startswith(searched)}
    assert len(others) >= 2
    for name, run in others.items():
        assert run.optimizer.lr == pytest.approx(int(name.removeprefix(searched)) / 1e6, rel=2e-3)
        assert run.model_copy(update={"name": chosen, "optimizer": arm.optimizer, "seed": arm.seed}) == arm


def test_runs_on_the_whole_text_have_equal_tokens(runs):
    grown, scratch = runs["annealed-random-sqrt-all"], runs["annealed-scratch-all"]
    assert (grown.tokens, grown.task, grown.schedule) == (scratch.tokens, scratch.task, scratch.schedule)
    assert grown.tokens == runs["annealed-random-sqrt-long"].tokens


def test_the_long_run_from_scratch_has_less_than_twice_the_epochs_of_the_grown_run(runs):
    """Both sides are multiplied by the length of the whole text.

    The grown run reads all of it, and the run from scratch a stretch.
    """
    grown, longer = runs["annealed-random-sqrt-all"], runs["annealed-scratch-long"]
    first, end = longer.task.stretch
    assert longer.tokens / (end - first) < 2 * grown.tokens


def test_combined_has_other_seeds_than_the_runs_that_it_repeats(studies):
    combined, others = ({run.seed for run in studies[study]} for study in ("combined", "tokenformer"))
    assert not combined & others


@pytest.mark.parametrize("prefix", ["", "long-"])
def test_arms_of_one_budget_have_equal_width_rotary_fraction_parameters_and_tokens(runs, prefix):
    arms = [runs[f"{prefix}{arm}-chosen"] for arm in ARMS]
    shared = {(run.steps, run.task, run.schedule, run.model.width, run.model.position) for run in arms}
    assert len(shared) == 1
    assert arms[0].model.position.fraction == 1.0
    sizes = [run.model.params(embedding=False) for run in arms]
    assert max(sizes) / min(sizes) < 1.03


def test_two_budgets_differ_only_in_steps(runs):
    for arm in ARMS:
        short, long = runs[f"{arm}-chosen"], runs[f"long-{arm}-chosen"]
        assert long.steps == 8 * short.steps
        same = {"name": long.name, "steps": long.steps, "evaluate_every": long.evaluate_every}
        assert short.model_copy(update=same) == long


def test_stages_and_their_controls_read_text_that_runs_from_scratch_do_not_read(runs):
    for run in (run for run in runs.values() if run.data != "second" and "-large-" not in run.name):
        if not run.name.endswith("-all"):
            assert run.task.stretch == ((0.8, 1.0) if run.init else (0.0, 0.8)), run.name


def test_a_stage_has_a_tenth_of_the_tokens_of_the_first_model_of_its_chain(runs):
    for name in ("grown-random-sqrt-2", "grown-random-sqrt-3", "grown-zero-keep-2", "net2net-2", "hypercloning-2"):
        assert 10 * runs[name].tokens == runs[PARENT].tokens
    assert runs["grown-double-2"].tokens == 2 * runs["grown-random-sqrt-2"].tokens == 4 * runs["grown-half-2"].tokens


def test_arms_on_the_second_domain_have_equal_parameters_rates_and_tokens(runs):
    arms = {name: run for name, run in runs.items() if name.startswith("continued-")}
    assert {run.data for run in arms.values()} == {"second"}
    assert len({(run.steps, run.task, run.schedule, run.optimizer) for run in arms.values()}) == 1
    sizes = {name: run.model.params(embedding=False) for name, run in arms.items()}
    for ungrown in ("continued-tokenformer-ungrown", "continued-transformer-ungrown"):
        assert sizes.pop(ungrown) == runs[arms[ungrown].init].model.params(embedding=False)
    assert len(sizes) == 5
    assert max(sizes.values()) / min(sizes.values()) < 1.002
    assert {run.init for name, run in arms.items() if "tokenformer" not in name} == {"long-modern-chosen"}
    assert {run.init for name, run in arms.items() if "tokenformer" in name} == {PARENT}


def test_continued_parents_have_the_flops_or_the_tokens_of_the_stage(runs):
    for size, parent in ((2, PARENT), (3, "grown-random-sqrt-2")):
        stage, control = runs[f"grown-random-sqrt-{size}"], runs[f"trained-on-{size}"]
        assert (control.init, stage.init, control.growth) == (parent, parent, None)
        assert control.flops == pytest.approx(stage.flops, rel=5e-4)
        assert control.task == stage.task
    tokens = runs["trained-on-tokens-2"]
    assert (tokens.init, tokens.tokens) == (PARENT, runs["grown-random-sqrt-2"].tokens)


@pytest.mark.parametrize(("length", "fraction"), [("short", 0.1), ("medium", 0.4), ("long", 0.8)])
def test_annealed_stages_and_continued_parents_have_equal_flops_data_and_schedules(runs, length, fraction):
    stages = [runs[f"annealed-{arm}-{length}"] for arm in ("random-sqrt", "zero-keep")]
    control = runs[f"annealed-trained-on-{length}"]
    for stage in stages:
        assert (stage.init, stage.tokens, stage.model.params()) == (PARENT, fraction * runs[PARENT].tokens, 852096)
        assert control.flops == pytest.approx(stage.flops, rel=5e-4)
        assert (control.task, control.data, control.schedule) == (stage.task, stage.data, stage.schedule)
        assert (control.init, control.growth) == (PARENT, None)


@pytest.mark.parametrize(
    ("scratch", "grown"),
    [("tokenformer-scratch-2", "grown-random-sqrt-2"), ("annealed-scratch-long", "annealed-random-sqrt-long")],
)
def test_training_from_scratch_has_the_flops_of_the_chain(runs, scratch, grown):
    scratch, grown = runs[scratch], runs[grown]
    assert scratch.model == grown.model.model_copy(update={
        part: getattr(grown.model, part).model_copy(update={"tau": getattr(scratch.model, part).tau})
        for part in ("projection", "feedforward")
    })  # fmt: skip
    assert scratch.flops == pytest.approx(chain_flops(runs, grown.name), rel=5e-4)


def test_the_envelope_has_three_sizes_at_three_budgets(runs):
    points = {name: run for name, run in runs.items() if name.startswith(FROM_SCRATCH)}
    by_width = {}
    for run in points.values():
        by_width.setdefault(run.model.width, []).append(run.flops)
    assert sorted(by_width) == [64, 128, 192]
    for costs in zip(*map(sorted, by_width.values()), strict=True):
        assert max(costs) / min(costs) < 1.15


def test_grown_and_continued_image_models_have_equal_flops(studies):
    runs = {run.name: run for run in studies["vision"]}
    grown, control = runs["grown-random-sqrt"], runs["trained-on"]
    assert control.init == grown.init
    assert control.flops == pytest.approx(grown.flops, rel=1e-3)
