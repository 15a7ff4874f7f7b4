"""Intervals of protocol.statistics, against closed forms and scipy."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from formerlab.evaluation.translation.bleu import corpus_bleu
from formerlab.report.claims.quantity import (
    BATCHES,
    MONTE_CARLO_GUARD,
    Agreement,
    Combination,
    Examples,
    MissingRowsError,
    RunMetric,
    residual_variance,
    within_run_variance,
)
from formerlab.report.claims.rows import similar_runs
from formerlab.report.studies.two_fold import choose_alphas, chosen_answers
from formerlab.statistics import resampled

NOISE = np.random.default_rng(0)
POOL = (0.01, 12)


def combination(name, values, pool=None, **more):
    return Combination({RunMetric(name, pd.Series(values), pooled=lambda levels: pool, **more): 1.0})


def estimate(*groups, seeds=None, resamples=2000, **more):
    """Return the estimate from examples by task; each group is seeds x examples (x statistics)."""
    names = {f"task{index}": tuple(map(str, range(group.shape[1]))) for index, group in enumerate(groups)}
    seeds = tuple(range(len(groups[0]))) if seeds is None else seeds
    stacked = [group if group.ndim == 3 else np.stack([group, np.ones_like(group)], axis=-1) for group in groups]
    return Examples(tuple(stacked), seeds, names, **more).estimate(resamples)


def test_difference_of_two_runs_has_the_paired_t_interval():
    a, b = NOISE.normal(3, 0.02, 4), NOISE.normal(3, 0.02, 4)
    pool = residual_variance(pd.concat({"a": pd.Series(a), "b": pd.Series(b)}))
    assert pool[0] * 2 == pytest.approx((a - b).var(ddof=1))
    interval = (combination("a", a, pool) - combination("b", b, pool)).interval(0.95)
    assert (interval.low, interval.high) == pytest.approx(stats.ttest_rel(a, b).confidence_interval(0.95))


def test_pooled_variance_is_used_unless_an_f_test_rejects_it():
    pooled = (combination("a", [3.0, 3.001, 3.0], POOL) - combination("b", [2.9] * 3, POOL)).interval(0.95)
    assert pooled.high - pooled.mean == pytest.approx(stats.t(12).ppf(0.975) * math.sqrt(2 * 0.01 / 3))
    values = [3.0, 6.0, 9.0]
    unpooled = (combination("a", values, POOL) - combination("b", [0.0] * 3, POOL)).interval(0.95)
    assert unpooled.high - unpooled.mean == pytest.approx(stats.t(2).ppf(0.975) * stats.sem(values))


def test_arms_with_unequal_deviations_have_welchs_interval():
    """Arms with different deviations have separate variances and degrees of freedom (Welch).

    If the deviations are equal or one is unknown, the arms share one variance.
    """
    wide, narrow = pd.Series([3.0, 3.12, 3.05]), pd.Series([2.9, 2.91, 2.92])
    variances = [within_run_variance([values]) for values in (wide, narrow)]
    a, b = (
        combination(n, v, POOL, model_variance=lambda o=o: o)
        for n, v, o in zip("ab", (wide, narrow), variances, strict=True)
    )
    expected = stats.ttest_ind(wide, narrow, equal_var=False).confidence_interval(0.95)
    interval = (a - b).interval(0.95)
    assert (interval.low, interval.high) == pytest.approx(expected)
    common = stats.t(12).ppf(0.975) * math.sqrt(2 * 0.01 / 3)
    for others in ((variances[0], variances[0]), (variances[0], None)):
        a, b = (
            combination(n, v, POOL, model_variance=lambda o=o: o)
            for n, v, o in zip("ab", (wide, narrow), others, strict=True)
        )
        interval = (a - b).interval(0.95)
        assert interval.high - interval.mean == pytest.approx(common)


def test_the_within_run_variance_uses_the_mean_of_each_run():
    first, second, single = pd.Series([3.0, 3.2]), pd.Series([4.0, 4.0, 4.3]), pd.Series([9.0])
    assert within_run_variance([first, second, single]) == pytest.approx(((0.02 + 0.06) / 3, 3))
    assert within_run_variance([single]) is None


def test_variance_shared_by_all_seeds_is_added_once():
    """The variance of an envelope does not shrink with the number of seeds of the chain."""
    interval = combination("a", [1.0, 1.2, 1.1], shared=(0.04, 6)).interval(0.95)
    between = 0.01 / 3
    freedom = (between + 0.04) ** 2 / (between**2 / 2 + 0.04**2 / 6)
    assert interval.high - interval.mean == pytest.approx(stats.t(freedom).ppf(0.975) * math.sqrt(between + 0.04))


def test_coefficients_of_one_run_are_summed_before_they_are_squared():
    """Excess = (sparse - dense) - (plain - dense) / 4."""
    sparse, dense, plain = (combination(name, [3.0, 3.01, 3.02], POOL) for name in ("sparse", "dense", "plain"))
    excess = (sparse - dense) - 0.25 * (plain - dense)
    assert {level.name: c for level, c in excess.terms.items()} == {"sparse": 1, "dense": -0.75, "plain": -0.25}
    half = stats.t(12).ppf(0.975) * math.sqrt(0.01 * (1 + 0.75**2 + 0.25**2) / 3)
    assert excess.interval(0.95).high - excess.interval(0.95).mean == pytest.approx(half)
    # the value of a single run is not a comparison, so it has no pooled variance
    assert plain.interval(0.95).high != pytest.approx(half)


@pytest.mark.parametrize(("documents", "counted"), [(19, False), (40, True)])
def test_twenty_documents_add_a_second_variance(documents, counted):
    weights = NOISE.integers(50, 150, documents).astype(float)
    on = {run: {seed: NOISE.normal(3, 0.3, documents) for seed in range(3)} for run in "ab"}
    means = {run: [np.average(values, weights=weights) for values in seeds.values()] for run, seeds in on.items()}
    a, b = (combination(run, means[run], units=pd.DataFrame(on[run]).T, weights=weights) for run in "ab")
    interval = (a - b).interval(0.95)
    values = np.array(means["a"]) - np.array(means["b"])
    d = np.mean([on["a"][seed] - on["b"][seed] for seed in range(3)], axis=0)
    fractions = weights / weights.sum()
    within = documents / (documents - 1) * np.sum(fractions**2 * (d - fractions @ d) ** 2) if counted else 0.0
    between = values.var(ddof=1) / 3
    freedom = (between + within) ** 2 / (between**2 / 2 + within**2 / (documents - 1))
    assert interval.high - interval.mean == pytest.approx(stats.t(freedom).ppf(0.975) * math.sqrt(between + within))
    assert bool((a - b).documents()) is counted


def test_only_seeds_of_all_terms_are_compared():
    difference = combination("a", [1.0, 2.0, 3.0, 9.0]) - combination("b", [0.0, 0.0, 0.0])
    assert (difference.by_seed.index.tolist(), difference.interval(0.95).mean) == ([0, 1, 2], 2.0)


def test_similar_runs_share_a_variance():
    base = {"seed": 0, "status": "finished", "data.fingerprint": "d", "init.id": None}
    base |= {"flops": 10.0, "parameters_non_embedding": 100.0}
    others = {
        "reference": {},
        "twice": {"flops": 20.0},
        "expensive": {"flops": 20.1},
        "wide": {"parameters_non_embedding": 201.0},
        "diverged": {"status": "diverged"},
        "elsewhere": {"data.fingerprint": "e"},
        "grown": {"init.id": "study/reference/seed0"},
    }
    runs = pd.DataFrame([base | {"run": run} | changes for run, changes in others.items()])
    assert set(similar_runs(runs, ["reference"])["run"]) == {"reference", "twice"}


def test_seeds_and_examples_add_separate_variances():
    """Two seeds have an effect near zero and one seed has a large effect.

    An interval from resampled seeds would exclude zero.
    """
    by_seed = np.array([0.001, 0.002, 0.05])[:, None] + np.zeros((3, 200))
    low, high = estimate(by_seed).ends(0.95)
    assert low < 0 < high


def test_fewer_than_twenty_examples_have_a_t_interval():
    values = NOISE.normal(0.1, 1, (1, 8))
    interval = estimate(values).interval(0.95)
    assert (interval.low, interval.high) == pytest.approx(stats.ttest_1samp(values[0], 0).confidence_interval(0.95))
    assert estimate(np.ones((1, 1))).ends(0.95) == (-math.inf, math.inf), "with one example the interval is infinite"


def test_interval_ends_in_criteria_are_widened_by_three_monte_carlo_standard_errors():
    quantity = estimate(NOISE.normal(0, 1, (1, 100)))
    lows = [np.quantile(batch, 0.025) for batch in quantity.replicates]
    expected = np.quantile(quantity.replicates, 0.025) - MONTE_CARLO_GUARD * np.std(lows, ddof=1) / math.sqrt(BATCHES)
    assert quantity.ends(0.95)[0] == pytest.approx(expected)
    assert quantity.interval(0.95).low == pytest.approx(np.quantile(quantity.replicates, 0.025))


def test_differences_stay_paired_because_resamples_are_shared():
    same = NOISE.normal(0, 1, (3, 60))
    difference = estimate(same) - 0.5 * estimate(2 * same)
    assert np.abs(difference.replicates).max() < 1e-12
    with pytest.raises(MissingRowsError, match="different seeds"):
        estimate(same) - estimate(same, seeds=(4, 5, 6))


def test_tasks_of_different_sizes_have_equal_weight():
    by_seed = np.array([0.1, -0.3, 0.5])[:, None]
    quantity = estimate(np.tile(by_seed, (1, 30)), np.tile(-by_seed, (1, 3000)), resamples=40)
    assert np.abs(quantity.replicates).max() < 1e-12
    assert quantity.by_seed.tolist() == pytest.approx([0.0, 0.0, 0.0])
    assert quantity.examples == 3030


def test_corpus_score_is_computed_for_every_resample():
    """The statistics are summed, because smoothing of an n-gram order without a match depends on the sums."""
    sentences = NOISE.integers(0, 3, (1, 24, 10)).astype(float)
    sentences[..., 4:8], sentences[..., 3], sentences[..., 8:] = 4, 0, 9
    quantity = estimate(sentences, reduce=corpus_bleu, resamples=BATCHES * 5)
    assert quantity.by_seed[0] == pytest.approx(float(corpus_bleu(sentences[0].sum(axis=0))))
    ((_, counts),) = resampled(24, 5, 0)
    np.testing.assert_allclose(quantity.replicates[0], corpus_bleu(counts @ sentences[0]))


def test_alpha_is_chosen_again_in_every_resample():
    halves = {task: tuple((NOISE.random((6, 1, 30)) < 0.5).astype(float) for _ in range(2)) for task in "ab"}
    groups = tuple(half.transpose(1, 2, 0) for task in "ab" for half in halves[task])
    quantities = {
        choice: Examples(groups, (0,), {"a": (), "b": ()}, chosen=choice).estimate(BATCHES * 5)
        for choice in ("own", "common")
    }
    resampled_rows = {
        task: [next(resampled(30, 5, (2 * index + half) * 1000))[1] for half in (0, 1)]
        for index, task in enumerate("ab")
    }
    for resample in range(5):
        means = {t: [halves[t][h][:, 0] @ resampled_rows[t][h][resample] / 30 for h in (0, 1)] for t in "ab"}
        alphas_by_task = [means[task][half][means[task][1 - half].argmax()] for task in "ab" for half in (0, 1)]
        common_alphas = [sum(means[task][1 - half] for task in "ab").argmax() for half in (0, 1)]
        common = [means[task][half][common_alphas[half]] for task in "ab" for half in (0, 1)]
        for choice, expected in (("own", alphas_by_task), ("common", common)):
            assert quantities[choice].replicates[0, resample] == pytest.approx(np.mean(expected))
    grid = {task: np.concatenate(pair, axis=2) for task, pair in halves.items()}
    sides = dict.fromkeys("ab", np.repeat([0, 1], 30))
    picked = choose_alphas(grid, sides, common=False)
    points = [chosen_answers(grid[task], picked[task], sides[task]).mean() for task in "ab"]
    assert quantities["own"].by_seed[0] == pytest.approx(np.mean(points))
    middle = quantities["own"].interval(0.95)
    assert middle.high - middle.mean == pytest.approx(stats.norm.ppf(0.975) * quantities["own"].replicates.std())


def test_agreement_uses_fishers_z_and_the_jackknife():
    rows = NOISE.normal(0, 1, 50) + NOISE.normal(0, 0.5, (4, 50))

    def mean_z(some):
        return np.arctanh(np.corrcoef(some)[np.triu_indices(len(some), 1)]).mean()

    mean, without = mean_z(rows), [mean_z(np.delete(rows, seed, axis=0)) for seed in range(4)]
    half = stats.t(3).ppf(0.975) * math.sqrt(3 / 4 * np.sum((without - np.mean(without)) ** 2))
    interval = Agreement(rows).interval(0.95)
    assert (interval.mean, interval.low, interval.high) == pytest.approx(
        tuple(np.tanh([mean, mean - half, mean + half]))
    )
    assert not Agreement(rows[:2]).interval(0.95).known
