"""The verbs that read results: draw, figures, exact, claims, readme, runs, headline, track, export."""

import argparse
import gc
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.as_planned import as_planned
from formerlab.commands.context import add_verb, load_plan
from formerlab.errors import UserError
from formerlab.files import write_json
from formerlab.plan.judge import Judge, failed_syncs
from formerlab.plan.locate import ensure_plan, read_plan
from formerlab.results.notes import noted
from formerlab.results.schema import CLAIMS
from formerlab.results.write import hashes_of_rows

if TYPE_CHECKING:
    from formerlab.results.read import Objection, Results


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, "draw", draw, "draw figures and tables of the live results")
    parser.add_argument("names", nargs="+", metavar="name", help="figure or table, such as denseformer_depth")
    text = "end well even where one cannot be drawn: its files and `status` say so"
    parser.add_argument("--go-on", action="store_true", help=text)

    text = "draw every figure and table from rows that exist; trains nothing"
    parser = add_verb(verbs, "figures", figures, text, configured=False)
    parser.add_argument("--tree", choices=("cached", "live"), default="cached", help="which rows; default: cached")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--figures", type=Path, default=Path("figures"))

    add_verb(verbs, "exact", exact, "run the numeric checks of the exact claims")
    text = "judge the registered claims by the live results"
    parser = add_verb(verbs, "claims", claims, text)
    parser.add_argument("--out", type=Path, help="folder for claims.csv and .html; default: show the verdicts")
    text = "list every finished run with its cost and what it came from"
    parser = add_verb(verbs, "runs", runs, text)
    parser.add_argument("--out", type=Path, help="folder for runs.csv and runs.html; default: show the costs")
    add_verb(verbs, "headline", headline, "print the headline table of every study")
    text = "bring all runs into MLflow, also those that train; running it again duplicates nothing"
    parser = add_verb(verbs, "track", track, text)
    parser.add_argument("--weights", action="store_true", help="log the weights of finished runs as artifacts too")
    parser.add_argument("--failures", type=int, help=argparse.SUPPRESS)
    parser = add_verb(verbs, "export", export, "copy the rows of finished live runs to results/cached, checked")
    parser.add_argument("--to", type=Path, help="another folder in place of results/cached, as of another checkout")

    text = "write what the cached results say into README.md, docs and figures"
    parser = add_verb(verbs, "readme", readme, text, configured=False)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is not up to date")


def draw(arguments: argparse.Namespace) -> None:
    """Draw some figures and tables of the plan's scale."""
    from formerlab.report.write import draw_each

    plan = load_plan(arguments)
    failed = draw_each(arguments.names, Path(plan["results"]), Path(plan["figures"]), Judge(plan).objection)
    if failed and not arguments.go_on:
        raise UserError(f"{', '.join(failed)} could not be drawn, for the reasons above")


def figures(arguments: argparse.Namespace) -> None:
    """Draw everything that has rows, at every scale."""
    from formerlab.report.write import draw_all
    from formerlab.results.read import has_runs

    rows, out = arguments.results / arguments.tree, arguments.figures / arguments.tree
    judged = sorted(rows.glob("*/")) if Path("workflow", "studies").is_dir() else []
    tasks = [(root, out / root.name) for root in judged if has_runs(root)]
    if arguments.tree == "cached":  # nobody objects to these rows, so processes may share the work
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process: together they keep all cores busy
        # A figure is many small objects that live until it is saved: a tenth of the time went into garbage collection.
        rarely = partial(gc.set_threshold, 200_000)
        with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=rarely) as pool:
            verdicts = [pool.submit(_write_verdicts, *task) for task in tasks]  # the longest tasks, so they begin first
            written = draw_all(rows, out, pool=pool)
            written += [path for one in verdicts for path in one.result()]
    else:
        written = [path for task in tasks for path in _write_verdicts(*task)]
        written += draw_all(rows, out, _objection)
    print(f"{len(written)} files in {out}")


def exact(arguments: argparse.Namespace) -> None:
    """Write the numbers of the exact claims beside the runs of the scale."""
    from formerlab.report.claims.render import write_exact
    from formerlab.report.claims.verdict import EXACT

    plan = load_plan(arguments)
    root = Path(plan["results"])
    with noted("exact", root), as_planned(plan, "exact", CLAIMS):
        write_exact(root / EXACT)
        record = {"schema": 1, "code_hash": plan["exact"][CLAIMS]["code"]}
        write_json(root / "exact.json", record | {"rows_sha256": hashes_of_rows(root, [EXACT])})


def claims(arguments: argparse.Namespace) -> None:
    """Show the verdicts at the plan's scale, or write them."""
    from formerlab.plan.claim_arms import read_arms
    from formerlab.report.claims.render import counts, frame
    from formerlab.report.claims.verdict import verdicts

    results = _results(load_plan(arguments))
    if arguments.out is not None:
        print(*_write_claims(results, arguments.out), sep="\n")
        return
    found = verdicts(results, read_arms(Path(), results.scale))
    rows = frame(found)[["verdict", "claim", "item", "ours"]].fillna("")
    print(f"{counts(found)}\n\n{rows.to_string(index=False, justify='left', max_colwidth=60)}")
    if warning := results.warning():
        print(f"\n{warning}")


def _results(plan: dict[str, Any]) -> "Results":
    """Return the rows of a plan's scale, without those that are not as planned."""
    from formerlab.results.read import Results

    return Results(Path(plan["results"]), Judge(plan).objection)


def readme(arguments: argparse.Namespace) -> None:
    """Write what README.md, docs and figures have from cached rows and scales, or see that it is up to date."""
    from formerlab.commands.readme import outdated, write
    from formerlab.report.committed import complaint, refresh

    if not arguments.check:
        print("rewritten: " + (", ".join([*write(Path()), *refresh(Path())]) or "nothing, all was up to date"))
    elif names := list(outdated(Path())):
        raise UserError(f"{names[0]}: its claims are not those of results/cached and workflow; run make readme")
    elif line := complaint(Path()):
        raise UserError(line)


def runs(arguments: argparse.Namespace) -> None:
    """Show every finished run of the plan's scale and what each study cost, or write it."""
    from formerlab.report.ledger import text, write_ledger

    results = _results(load_plan(arguments))
    print(text(results) if arguments.out is None else "\n".join(map(str, write_ledger(results, arguments.out))))


def _write_claims(results: "Results", out: Path) -> list[Path]:
    from formerlab.plan.claim_arms import read_arms
    from formerlab.report.claims.render import write_claims

    paths = write_claims(results, read_arms(Path(), results.scale), out)
    if warning := results.warning():
        print(f"claims: {warning}", file=sys.stderr)
    return paths


def _write_verdicts(root: Path, out: Path) -> list[Path]:
    """Write the verdicts of a scale, and its list of runs and their costs."""
    from formerlab.report.ledger import write_ledger
    from formerlab.results.read import Results

    results = Results(root, _objection(root))
    return _write_claims(results, out) + write_ledger(results, out)


def _objection(results: Path) -> "Objection | None":
    """Return what objects to live results that are not those of the configuration here; cached ones need no plan."""
    if results.parent.name != "live" or not Path("workflow", "scales", f"{results.name}.yaml").exists():
        return None
    plan = read_plan(ensure_plan(Path(), {"scale": results.name}))
    return Judge(plan).objection if Path(plan["results"]).resolve() == results.resolve() else None


def headline(arguments: argparse.Namespace) -> None:
    """Print the headline tables."""
    from formerlab.report.headline import headline as text

    plan = load_plan(arguments)
    print(text(Path(plan["results"]), Judge(plan).objection))


def track(arguments: argparse.Namespace) -> None:
    """Upsert all runs; a failure is a warning and counted in mlflow.json, so that the next call tries again.

    It is never a failed job: results and report need no tracking.
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
        except Exception as error:  # also what nobody thought of
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            outcome, failures = {"status": "failed", "reason": reason}, failures + 1
            print(f"warning: {reason}", file=sys.stderr)
    write_json(root / "mlflow.json", outcome | {"failures": failures})


def export(arguments: argparse.Namespace) -> None:
    """Copy rows from the live to the cached tree."""
    from formerlab.results.export import export as copy

    plan = load_plan(arguments)
    live = Path(plan["results"])
    cached = (arguments.to or live.parent.parent / "cached") / live.name
    seeds: dict[str, set[int]] = {}
    for job in plan["train"].values():
        seeds.setdefault(f"{job['study']}/{job['run']}", set()).add(job["seed"])
    outcome = copy(live, cached, Judge(plan).objection, seeds)
    for run_id in outcome["diverged"]:
        print(f"diverged: {run_id}")
    for name, reason in outcome["unfinished"].items():
        print(f"not exported: {name}: {reason}")
    for line in outcome["left_out"]:
        print(f"not exported: {line}")
    print(f"{len(outcome['exported'])} runs exported to {cached}")
