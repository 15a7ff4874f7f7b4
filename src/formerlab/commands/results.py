"""The verbs that read results: draw, figures, exact, claims, readme, runs, headline, track, export."""

import argparse
import sys
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_verb, load_plan
from formerlab.errors import UserError
from formerlab.files import write_json


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, "draw", draw, "draw one figure or table of the live results")
    parser.add_argument("name", help="figure or table, such as denseformer_depth")

    text = "draw every figure and table from rows that exist; trains nothing"
    parser = add_verb(verbs, "figures", figures, text, configured=False)
    parser.add_argument("--tree", choices=("cached", "live"), default="cached", help="which rows; default: cached")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--figures", type=Path, default=Path("figures"))

    add_verb(verbs, "exact", exact, "run the numeric checks of the exact claims")
    add_verb(verbs, "claims", claims, "judge the registered claims by the live results")
    add_verb(verbs, "runs", runs, "list every finished run with its cost and what it came from")
    add_verb(verbs, "headline", headline, "print the headline table of every study")
    add_verb(verbs, "track", track, "bring all finished runs into MLflow; running it again duplicates nothing")
    add_verb(verbs, "export", export, "copy the rows of finished live runs to results/cached, checked")

    text = "write the claims of the cached results into README.md and docs/claims.md"
    parser = add_verb(verbs, "readme", readme, text, configured=False)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the README is not up to date")

    text = "compare two runs: specs, curves, paired test on the held-out windows"
    parser = add_verb(verbs, "compare", compare, text, configured=False)
    parser.add_argument("first", type=Path, help="folder of a run")
    parser.add_argument("second", type=Path, help="folder of another run on the same data")


def draw(arguments: argparse.Namespace) -> None:
    """Draw one figure or table of the plan's scale."""
    from formerlab.figures import draw_one

    plan = load_plan(arguments)
    draw_one(arguments.name, Path(plan["results"]), Path(plan["figures"]))


def figures(arguments: argparse.Namespace) -> None:
    """Draw everything that has rows, at every scale."""
    from formerlab.figures import draw_all

    out = arguments.figures / arguments.tree
    written = draw_all(arguments.results / arguments.tree, out)
    if Path("workflow", "studies").is_dir():
        for scale in sorted({path.parent.name for path in written}):
            written += _write_claims(arguments.results / arguments.tree / scale, out / scale)
            written += _write_runs(arguments.results / arguments.tree / scale, out / scale)
    print(f"{len(written)} files in {out}")


def exact(arguments: argparse.Namespace) -> None:
    """Write the numbers of the exact claims beside the runs of the scale."""
    from formerlab.claims.table import EXACT, write_exact

    write_exact(Path(load_plan(arguments)["results"]) / EXACT)


def claims(arguments: argparse.Namespace) -> None:
    """Write claims.csv and claims.md of the plan's scale."""
    plan = load_plan(arguments)
    print(*_write_claims(Path(plan["results"]), Path(plan["figures"])), sep="\n")


def readme(arguments: argparse.Namespace) -> None:
    """Write what README.md and docs/claims.md have from cached rows and scales, or see that it is up to date."""
    from formerlab.claims.readme import outdated, write

    if not arguments.check:
        print("rewritten: " + (", ".join(write(Path())) or "nothing, all was up to date"))
    elif names := list(outdated(Path())):
        raise UserError(f"{names[0]}: its claims are not those of results/cached and workflow; run make readme")


def runs(arguments: argparse.Namespace) -> None:
    """Write runs.csv and runs.html of the plan's scale."""
    plan = load_plan(arguments)
    print(*_write_runs(Path(plan["results"]), Path(plan["figures"])), sep="\n")


def _write_runs(results: Path, out: Path) -> list[Path]:
    from formerlab.ledger import write_ledger
    from formerlab.results import Results

    return write_ledger(Results(results), out)


def _write_claims(results: Path, out: Path) -> list[Path]:
    from formerlab.claims.mapping import read_arms
    from formerlab.claims.table import write_claims
    from formerlab.results import Results

    return write_claims(Results(results), read_arms(Path(), results.name), out)


def headline(arguments: argparse.Namespace) -> None:
    """Print the headline tables."""
    from formerlab.tables import headline as text

    print(text(Path(load_plan(arguments)["results"])))


def track(arguments: argparse.Namespace) -> None:
    """Upsert all finished runs; a failure is a warning and a note in mlflow.json, never a failed job."""
    from formerlab.tracking import sync

    plan = load_plan(arguments)
    root, uri = Path(plan["results"]), plan["tracking_uri"]
    if not uri:
        write_json(root / "mlflow.json", {"status": "off"})
        return
    try:
        outcome = sync(root, uri, Path(plan["figures"]))
    except UserError as error:
        outcome = {"status": "failed", "reason": str(error)}
        print(f"warning: {error}", file=sys.stderr)
    write_json(root / "mlflow.json", outcome)


def export(arguments: argparse.Namespace) -> None:
    """Copy rows from the live to the cached tree."""
    from formerlab.export import export as copy

    plan = load_plan(arguments)
    live = Path(plan["results"])
    cached = live.parent.parent / "cached" / live.name
    outcome = copy(live, cached)
    for reason in ("diverged", "unfinished"):
        for run_id in outcome[reason]:
            print(f"{reason}: {run_id}")
    print(f"{len(outcome['exported'])} runs exported to {cached}")


def compare(arguments: argparse.Namespace) -> None:
    """Print the comparison."""
    from formerlab.compare import compare as text

    print(text(arguments.first, arguments.second))
