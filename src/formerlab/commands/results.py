"""The commands of results: exact computes the values of the exact claims; report, draw, figures, claims, readme, runs,
headline, track and export read rows.
"""

import argparse
import gc
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.context import Plan, add_command, find_plan, load_plan, planned_job
from formerlab.errors import UserError
from formerlab.files import write_json, write_record, write_text
from formerlab.plan.locate import read_plan, root_of
from formerlab.plan.staleness import Staleness, failed_syncs
from formerlab.results.schema import CLAIMS, EXACT
from formerlab.results.stages import MAKING, MEASURED, STAGES, TIMED
from formerlab.results.write import hashes_of_rows, write_rows

if TYPE_CHECKING:
    from formerlab.results.read import Results


def add_parsers(commands: Any) -> None:
    """Add the commands."""
    parser = add_command(commands, report)
    parser.add_argument("--out", type=Path, help="the page; default: results/live/<scale>/report.html")

    parser = add_command(commands, draw)
    parser.add_argument("names", nargs="+", metavar="name", help="figure or table, such as denseformer_depth")
    text = "succeed even if a figure fails; `status` lists the figure, and snakemake renders it again"
    parser.add_argument("--go-on", action="store_true", help=text)

    parser = add_command(commands, figures, configured=False)
    text = "render all figures and tables of this scale; default: the committed figures and tables"
    parser.add_argument("scale", nargs="?", help=text)
    parser.add_argument("--pdf", action="store_true", help="also write each figure as PDF, which doubles the time")
    add_command(commands, exact, text=STAGES["exact"].description)
    parser = add_command(commands, claims)
    parser.add_argument("--out", type=Path, help="folder for claims.csv and .html; default: show the verdicts")
    parser = add_command(commands, runs)
    parser.add_argument("--out", type=Path, help="folder for runs.csv and runs.html; default: show the costs")
    add_command(commands, headline)
    parser = add_command(commands, track)
    parser.add_argument("--weights", action="store_true", help="also log the weights of finished runs as artifacts")
    parser.add_argument("--failures", type=int, help=argparse.SUPPRESS)
    parser = add_command(commands, export)
    parser.add_argument("--to", type=Path, help="folder instead of results/cached, for example of another checkout")
    parser = add_command(commands, readme, configured=False)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not up to date")


def report(arguments: argparse.Namespace) -> None:
    """Write report.html, a page with every figure and table of the scale, captions, verdicts and commands."""
    print(write_report(load_plan(arguments), arguments.out))


def write_report(plan: Plan, out: Path | None = None) -> Path:
    """Write the page to `out` (default: report.html in the results of the plan) and return its path."""
    from formerlab.report.html_report import html_report

    runs = {name: entry["runs"] for job in plan["draw"].values() for name, entry in job["entries"].items()}
    stages = (("data", *TIMED, "exact"), MAKING, MEASURED)
    job_counts = [{stage: len(plan[stage]) for stage in names if plan[stage]} for names in stages]
    job_counts.append({"figures and tables": len(plan["draw"]), "claims": 1, "runs": 1, "MLflow": 1})
    path = out or Path(plan["results"], "report.html")
    write_text(path, html_report(_results(plan), Path(plan["figures"]), plan["studies"], runs, job_counts))
    return path


def draw(arguments: argparse.Namespace) -> None:
    """Render figures and tables of the live results."""
    from formerlab.report.write import draw_each

    plan = load_plan(arguments)
    failed = draw_each(arguments.names, Path(plan["results"]), Path(plan["figures"]), Staleness(plan).staleness_reason)
    if failed and not arguments.go_on:
        raise UserError(f"{', '.join(failed)} could not be rendered; the reasons are listed above")


def figures(arguments: argparse.Namespace) -> None:
    """Render the committed figures and tables, or all figures and tables of a scale, from the cached rows."""
    from formerlab.report.committed import is_committed
    from formerlab.report.write import draw_all
    from formerlab.results.read import has_runs

    rows, out = Path("results/cached"), Path("figures/cached")
    in_checkout = Path("workflow", "studies").is_dir()
    scale_folders = sorted(rows.glob(f"{arguments.scale or '*'}/")) if in_checkout else []
    selects = partial(is_committed, Path()) if in_checkout and not arguments.scale else None
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the pool has one process per core
    # The many small objects of a figure live until it is saved, so frequent garbage collection is slow.
    collect_rarely = partial(gc.set_threshold, 200_000)
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=collect_rarely) as pool:
        # Verdicts take longest, so they are submitted first.
        scales = [root for root in scale_folders if has_runs(root)]
        verdicts = [pool.submit(_write_verdicts, root, out / root.name) for root in scales]
        written = draw_all(rows, out, scale=arguments.scale or "*", pool=pool, pdf=arguments.pdf, selects=selects)
        written += [path for verdict in verdicts for path in verdict.result()]
    print(f"{len(written)} files in {out}")


def exact(arguments: argparse.Namespace) -> None:
    """Compute the values of the exact claims and write them to exact.csv."""
    from formerlab.evaluation.exact import CHECKS

    plan = load_plan(arguments)
    root = Path(plan["results"])
    with planned_job(plan, "exact", CLAIMS):
        rows = [(claim, name, value) for claim, check in CHECKS.items() for name, value in check().items()]
        write_rows(root / EXACT, ("claim", "name", "value"), rows)
        record = {"schema": 1, "code_hash": plan["exact"][CLAIMS]["code"]}
        write_record(root / "exact.json", record | {"rows_sha256": hashes_of_rows(root, [EXACT])})


def claims(arguments: argparse.Namespace) -> None:
    """Evaluate the registered claims on the live results."""
    from formerlab.report.claims.arms import read_arms
    from formerlab.report.claims.render import outcome_counts, verdict_frame
    from formerlab.report.claims.verdict import evaluate_results

    path = find_plan(arguments)
    results, root = _results(read_plan(path)), root_of(path)
    if arguments.out is not None:
        print(*_write_claims(results, arguments.out, root), sep="\n")
        return
    evaluated = evaluate_results(results, read_arms(root, results.scale))
    rows = verdict_frame(evaluated)[["verdict", "claim", "item", "ours"]].fillna("")
    print(f"{outcome_counts(evaluated)}\n\n{rows.to_string(index=False, justify='left', max_colwidth=60)}")
    if warning := results.warning():
        print(f"\n{warning}")


def _results(plan: Plan) -> "Results":
    """Return the results of a plan; rows that are not up to date are left out."""
    from formerlab.results.read import Results

    return Results(Path(plan["results"]), Staleness(plan).staleness_reason)


def readme(arguments: argparse.Namespace) -> None:
    """Update README.md, docs and figures from the cached results."""
    from formerlab.commands.readme import outdated
    from formerlab.report.committed import refresh, stale_message

    if not arguments.check:
        rendered = refresh(Path())  # first, because the pages list the figures
        pages = outdated(Path())
        for name, text in pages.items():
            write_text(Path(name), text)
        print("updated: " + (", ".join([*pages, *rendered]) or "nothing, all pages and figures were up to date"))
    elif pages := outdated(Path()):
        raise UserError(f"{next(iter(pages))}: differs from results/cached or workflow; run make readme")
    elif line := stale_message(Path()):
        raise UserError(line)


def runs(arguments: argparse.Namespace) -> None:
    """List every finished run with its cost; with --out, also with its parent, code and data."""
    from formerlab.report.run_table import format_text, write_run_table

    results = _results(load_plan(arguments))
    print(*([format_text(results)] if arguments.out is None else write_run_table(results, arguments.out)), sep="\n")


def _write_claims(results: "Results", out: Path, root: Path = Path()) -> list[Path]:
    from formerlab.report.claims.arms import read_arms
    from formerlab.report.claims.render import write_claims

    paths = write_claims(results, read_arms(root, results.scale), out)
    if warning := results.warning():
        print(f"claims: {warning}", file=sys.stderr)
    return paths


def _write_verdicts(root: Path, out: Path) -> list[Path]:
    """Write the verdicts of a scale and the list of its runs with their costs; return the paths of the files."""
    from formerlab.report.run_table import write_run_table
    from formerlab.results.read import read_once

    return _write_claims(read_once(root), out) + write_run_table(read_once(root), out)


def headline(arguments: argparse.Namespace) -> None:
    """Print the headline tables of the studies."""
    from formerlab.report.headline import headline as format_headline

    plan = load_plan(arguments)
    print(format_headline(Path(plan["results"]), Staleness(plan).staleness_reason))


def track(arguments: argparse.Namespace) -> None:
    """Write all runs to MLflow, including runs in progress; a repeated call writes only changes.

    A failure only prints a warning and is counted in mlflow.json, so that the next start of the DAG tries again.
    """
    plan = load_plan(arguments)
    root, uri = Path(plan["results"]), plan["tracking_uri"]
    failures = failed_syncs(root) if arguments.failures is None else arguments.failures
    outcome: dict[str, Any] = {"status": "off"}
    if uri:
        try:
            from formerlab.tracking.mlflow import sync

            outcome = sync(root, uri, Path(plan["figures"]), weights=arguments.weights)
            for line in outcome["refused"]:
                print(f"warning: not tracked: {line}", file=sys.stderr)
        except Exception as error:  # a tracking error must not fail the job
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            outcome, failures = {"status": "failed", "reason": reason}, failures + 1
            print(f"warning: {reason}", file=sys.stderr)
    write_json(root / "mlflow.json", outcome | {"failures": failures})


def export(arguments: argparse.Namespace) -> None:
    """Check the rows of finished live runs and copy them to results/cached."""
    from formerlab.results.export import export as export_runs

    plan = load_plan(arguments)
    live = Path(plan["results"])
    cached = (arguments.to or live.parent.parent / "cached") / live.name
    seeds: dict[str, set[int]] = {}
    for job in plan["train"].values():
        seeds.setdefault(f"{job['study']}/{job['run']}", set()).add(job["seed"])
    outcome = export_runs(live, cached, Staleness(plan).staleness_reason, seeds)
    for run_id in outcome["diverged"]:
        print(f"diverged: {run_id}")
    for name, reason in outcome["unfinished"].items():
        print(f"not exported: {name}: {reason}")
    for line in outcome["left_out"]:
        print(f"not exported: {line}")
    print(f"{len(outcome['exported'])} runs exported to {cached}")
