"""List scheduling: what holds for every programme, and what `plan --gpus` says of one."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formerlab.errors import UserError
from formerlab.plan.programme import duration, programme, programme_jobs
from formerlab.plan.schedule import Job, critical_path, makespan, schedule, submissions, with_interruptions

NEARLY = 1e-9


@st.composite
def programmes(draw, widest=4):
    """Draw jobs, each of which waits for some of those before it."""
    jobs = []
    for number in range(draw(st.integers(1, 14))):
        before = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        hours = draw(st.floats(0.01, 100.0))
        jobs.append(Job(f"j{number}", hours, draw(st.integers(1, widest)), tuple(f"j{one}" for one in sorted(before))))
    return jobs


@given(programmes(), st.integers(4, 12))
def test_never_shorter_than_the_critical_path_nor_than_the_work_shared_out(jobs, gpus):
    took = makespan(schedule(jobs, gpus))
    assert took >= sum(job.hours for job in critical_path(jobs)) * (1 - NEARLY)
    assert took >= sum(job.gpu_hours for job in jobs) / gpus * (1 - NEARLY)


@given(programmes(widest=1))
def test_one_gpu_takes_the_sum(jobs):
    assert makespan(schedule(jobs, 1)) == pytest.approx(sum(job.hours for job in jobs))


@given(programmes(), st.integers(4, 12))
def test_jobs_wait_for_what_they_need_and_no_gpu_is_given_twice(jobs, gpus):
    times, width = schedule(jobs, gpus), {job.name: job.gpus for job in jobs}
    assert times.keys() == width.keys()
    for job in jobs:
        assert all(times[name][1] <= times[job.name][0] for name in job.after)
    for start, _ in times.values():
        held = [width[name] for name, (begin, end) in times.items() if begin <= start < end]
        assert sum(held) <= gpus


@given(programmes(), st.integers(4, 12), st.randoms(use_true_random=False))
def test_the_order_in_which_jobs_are_given_changes_nothing(jobs, gpus, random):
    shuffled = random.sample(jobs, len(jobs))
    assert schedule(shuffled, gpus) == schedule(jobs, gpus)


@given(programmes(widest=1))
def test_with_a_gpu_for_each_job_the_critical_path_decides(jobs):
    longest = sum(job.hours for job in critical_path(jobs))
    assert makespan(schedule(jobs, len(jobs))) == pytest.approx(longest)


@given(programmes())
def test_the_critical_path_is_a_chain(jobs):
    path = critical_path(jobs)
    assert not path[0].after
    assert all(before.name in after.after for before, after in pairwise(path))


@given(st.floats(0.01, 500.0), st.floats(1.0, 48.0), st.floats(0.0, 0.5))
def test_without_preemptions_only_later_starts_are_added(hours, limit_h, start_h):
    job = with_interruptions(Job("j", hours), limit_h=limit_h, start_h=start_h, preemptions_per_day=0.0)
    again = submissions(hours, limit_h, start_h) - 1
    assert job.hours == hours + again * start_h
    assert job.hours <= (again + 1) * limit_h * (1 + 1e-6) or hours <= start_h
    often = with_interruptions(Job("j", hours), limit_h=limit_h, start_h=start_h, preemptions_per_day=2.0)
    assert often.hours > job.hours


def test_a_short_job_has_one_submission_and_costs_what_the_plan_says():
    plain = Job("j", 3.0)
    assert with_interruptions(plain, limit_h=24.0, start_h=0.1, preemptions_per_day=0.0) == plain
    assert submissions(48.0, 24.0, 0.0) == 2


def test_too_few_gpus_are_refused_in_a_line():
    with pytest.raises(UserError, match="--gpus 4: wide asks for 8"):
        schedule([Job("wide", 1.0, 8)], 4)


def test_the_programme_in_words(project):
    plan = project.plan()
    jobs = programme_jobs(plan)
    assert {job.name for job in jobs} >= set(plan["train"])
    assert all(set(job.after) <= {other.name for other in jobs} for job in jobs)
    text = programme(plan, 64, 0.0)
    assert text.startswith(f"The whole programme on 64 x {plan['hardware']}: ")
    assert "longest chain of runs" in text
    assert "what would shorten it" in text
    assert f"    {critical_path(jobs)[0].name}: " in text


def test_the_number_of_gpus_is_judged(project, capsys):
    from formerlab.__main__ import main

    for words, line in {("--gpus", "0"): "'0' is no number of GPUs", ("--preemptions", "x"): "'x' is no rate"}.items():
        with pytest.raises(SystemExit):
            main(["plan", *words])
        assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.01, "36 s"), (0.2, "12 min"), (3.42, "3.4 h"), (19 * 24, "19 days"), (7 * 8766, "7 years")],
)
def test_times_in_words(hours, text):
    assert duration(hours) == text
