"""The whole programme on a number of GPUs, in words: how long, what bounds it, and what would shorten it."""

from dataclasses import replace
from typing import Any

from formerlab.plan.cost import SHARING
from formerlab.plan.judge import made_runs
from formerlab.plan.schedule import Job, critical_path, makespan, schedule, submissions, with_interruptions
from formerlab.results.stages import MEASURED

SPLIT = 8
"""GPUs of a run in the question what more of them would bring: a machine's."""
STEPS_SHOWN = 6


def programme_jobs(plan: dict[str, Any]) -> list[Job]:
    """Return what takes hours: every run, and every measurement whose cost the plan predicts."""
    jobs = []
    for name, made in made_runs(plan).items():
        after = (made["init"],) if made["init"] else ()
        jobs.append(Job(name, made["cost"]["hours"], made.get("gpus", 1), after))
    for stage in MEASURED:
        for name, job in plan[stage].items():
            if "cost" in job:
                jobs.append(Job(f"{stage} {name}", job["cost"]["hours"], 1, (name,)))
    return jobs


def programme(plan: dict[str, Any], gpus: int, preemptions_per_day: float) -> str:
    """Return how long the programme takes on `gpus` GPUs, its critical path, and what would shorten it."""
    plain = programme_jobs(plan)
    limit_h, start_h = plan["runtime_minutes"] / 60, plan["start_s"] / 3600
    rules = {"limit_h": limit_h, "start_h": start_h, "preemptions_per_day": preemptions_per_day}
    jobs = [with_interruptions(job, **rules) for job in plain]
    took = makespan(schedule(jobs, gpus))
    path = critical_path(jobs)
    chain, work = sum(job.hours for job in path), sum(job.gpu_hours for job in jobs)
    unit = _unit(plan)
    lines = [
        f"The whole programme on {gpus} x {plan['hardware']}: {duration(took)}",
        f"  all work               {_hours(work)} {unit}-hours, so at least {duration(work / gpus)} on {gpus}",
        f"  longest chain of runs  {duration(chain)}, on however many {unit}s:",
    ]
    hours = {job.name: job.hours for job in plain}
    for job in path[:STEPS_SHOWN]:
        parts = submissions(hours[job.name], limit_h, start_h)
        cut = f", in {parts} jobs of at most {limit_h:g} h each" if parts > 1 else ""
        lines.append(f"    {job.name}: {duration(job.hours)} on {job.gpus} {unit}{'s' if job.gpus > 1 else ''}{cut}")
    lines += [f"    and {len(path) - STEPS_SHOWN} more"] if len(path) > STEPS_SHOWN else []
    lines += ["  what would shorten it", *_shorter(plain, rules, gpus, unit, work / gpus, duration(took))]
    return "\n".join(
        [
            *lines,
            f"  assumed: a job is preempted {preemptions_per_day:g} times a day on average (--preemptions), at the",
            "  cost of a start and two and a half minutes; jobs wait for processors and what they start from,",
            "  alone. Data, timings and figures are not counted.",
        ]
    )


def _shorter(plain: list[Job], rules: dict[str, float], gpus: int, unit: str, share: float, took: str) -> list[str]:
    """Return what twice the GPUs, wider jobs for runs that take longer than an even share, and no preemption bring."""
    count = min(SPLIT, gpus)
    long = [job.name for job in plain if job.hours > share]
    wider = [_wider(job, count) if job.hours > share else job for job in plain]
    calm = rules | {"preemptions_per_day": 0.0}
    changes = {
        f"{2 * gpus} {unit}s": (plain, rules, 2 * gpus),
        f"gpus: {count} for the {len(long)} runs of over {duration(share)} (at {SHARING:g} of their joint speed)": (
            wider,
            rules,
            gpus,
        ),
        "no preemption": (plain, calm, gpus),
    }
    if not long or count == 1:
        del changes[list(changes)[1]]
    width = max(map(len, changes))
    lines = []
    for name, (jobs, under, number) in changes.items():
        then = duration(makespan(schedule([with_interruptions(job, **under) for job in jobs], number)))
        lines.append(f"    {name:<{width}}  {then if then != took else 'no shorter'}")
    return lines


def _wider(job: Job, count: int) -> Job:
    """Return a run on as many GPUs as one machine has; measurements stay on one."""
    if job.gpus >= count or " " in job.name:
        return job
    before = job.gpus * (SHARING if job.gpus > 1 else 1.0)
    return replace(job, gpus=count, hours=job.hours * before / (count * SHARING))


def _unit(plan: dict[str, Any]) -> str:
    return "GPU" if plan["device"] == "cuda" else "core"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def duration(hours: float) -> str:
    """Return a time as people say it: 45 s, 12 min, 3.4 h, 19 days, 7 years."""
    if hours < 1.5 / 60:
        return f"{3600 * hours:.0f} s"
    if hours < 1.5:
        return f"{60 * hours:.0f} min"
    if hours < 72:
        return f"{hours:.1f} h"
    return f"{hours / 24:.0f} days" if hours < 2 * 8766 else f"{hours / 8766:,.0f} years"
