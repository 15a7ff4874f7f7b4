"""The verbs that carry results from one machine to another: archive, import-archive."""

import argparse
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_config_arguments, load_plan
from formerlab.progress import short


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = verbs.add_parser("archive", help="pack the finished live results, weights too, into one verified zip")
    add_config_arguments(parser)
    parser.add_argument("--out", type=Path, help="the zip; default: formerlab-<scale>.zip")
    parser.set_defaults(function=archive)

    parser = verbs.add_parser("import-archive", help="verify an archive and unpack it into results/live")
    parser.add_argument("path", type=Path, help="a zip that `archive` wrote")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.set_defaults(function=import_archive)


def archive(arguments: argparse.Namespace) -> None:
    """Write the archive of the plan's scale."""
    from formerlab.results.archive import archive as pack

    plan = load_plan(arguments)
    out = arguments.out or Path(f"formerlab-{plan['scale']}.zip")
    manifest = pack(Path(plan["results"]), out)
    print(f"{out}: {manifest.runs} runs, {len(manifest.files)} files, {short(out.stat().st_size)}B")


def import_archive(arguments: argparse.Namespace) -> None:
    """Unpack an archive."""
    from formerlab.results.archive import import_archive as unpack

    live = arguments.results / "live"
    manifest, new = unpack(arguments.path, live)
    print(f"{len(new)} of {len(manifest.files)} files were new in {live / manifest.scale} ({manifest.runs} runs)")
