"""The commands init, generate and ui."""

import argparse
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from formerlab.commands.context import Plan, add_command, load_plan
from formerlab.errors import UserError, reason
from formerlab.files import read_json, write_text

SECONDS_BETWEEN_SYNCS = 60


def add_parsers(commands: Any) -> None:
    """Add the commands."""
    parser = add_command(commands, init, configured=False)
    parser.add_argument("folder", type=Path, help="a new or empty folder")

    parser = add_command(commands, generate, configured=False)
    parser.add_argument("checkpoint", type=Path, help="folder of a finished run, or its id")
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=100, help="maximum number of new tokens; default 100")
    text = "temperature of sampling; 0 chooses the most probable token; default 0.8"
    parser.add_argument("--temperature", type=float, default=0.8, help=text)
    parser.add_argument("--top-k", type=int, help="sample only from the k most probable tokens")
    parser.add_argument("--seed", type=int, default=0)

    parser = add_command(commands, ui)
    parser.add_argument("--port", type=int, default=5000, help="port of the UI on this machine; default 5000")


PROJECT = ("config.yaml", "workflow/data.yaml", "workflow/scales", "workflow/studies", "profiles", "slurm", "cluster")
"""Files and folders that `init` copies into a project; the rules remain in the package."""
SNAKEFILE = """\
# This file includes the rules of the installed formerlab; you may add rules below.
from importlib.resources import files

include: str(files("formerlab_project") / "Snakefile")

workflow.default_target = "all"  # `include` does not set the default target
"""


def init(arguments: argparse.Namespace) -> None:
    """Create a project folder with Snakefile, configuration, studies, scales and profiles."""
    folder, template = arguments.folder, Path(str(files("formerlab_project")))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not empty; choose a new folder")
    for name in PROJECT:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (template / name).is_dir() else shutil.copy)(template / name, target)
    for path in (folder, *folder.rglob("*")):  # the files of an installed package may be read-only
        path.chmod(path.stat().st_mode | stat.S_IRUSR | stat.S_IWUSR)
    write_text(folder / "Snakefile", SNAKEFILE)
    print(f"{folder} is ready:\n  cd {shlex.quote(str(folder))}\n  formerlab demo --scale smoke", file=sys.stderr)


def generate(arguments: argparse.Namespace) -> None:
    """Continue a prompt with a finished run."""
    from formerlab.data import load_tokenizer
    from formerlab.evaluation.language.generate import check_text
    from formerlab.evaluation.language.generate import generate as continue_prompt
    from formerlab.models.decoder import DecoderModel
    from formerlab.training.load import data_folder, find_finished_run, load_model

    check_text("prompt", arguments.prompt)
    folder = find_finished_run(arguments.checkpoint)
    model, run = load_model(folder, "decoder")
    data = data_folder(folder, run)
    print(arguments.prompt, end="", flush=True)
    notes: list[str] = []
    continue_prompt(
        cast(DecoderModel, model),
        load_tokenizer(data),
        arguments.prompt,
        **{name: getattr(arguments, name) for name in ("tokens", "temperature", "top_k", "seed")},
        end_of_text=read_json(data / "manifest.json")["tokenizer"]["end_of_text"],
        stream=lambda text: print(text, end="", flush=True),
        warn=notes.append,
    )
    print(flush=True)
    for note in notes:
        print(note, file=sys.stderr)


def ui(arguments: argparse.Namespace) -> None:
    """Open the MLflow UI with all runs, and send new results to MLflow every minute."""
    from formerlab.tracking.mlflow import TRAINING_VIEW, sync

    try:
        socket.create_server(("127.0.0.1", arguments.port)).close()
    except (OSError, OverflowError):
        raise UserError(f"--port: {arguments.port} is in use or invalid; choose another from 1024 to 65535") from None
    plan = load_plan(arguments)
    uri = plan["tracking_uri"]
    if not uri:
        raise UserError("config.yaml: tracking_uri is empty; set it to sqlite:///mlflow.db and run `formerlab track`")
    if not uri.startswith("sqlite:"):
        raise UserError(f"tracking_uri: {uri} is a server; open it in a browser after `formerlab track` sent the runs")
    tracked = _pages(plan) or {"no runs yet": f"/#/experiments?{TRAINING_VIEW}"}
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--port", str(arguments.port)]
    command += ["--host", "127.0.0.1"]  # overrides MLFLOW_HOST, which could open the UI to the network
    for study, page in tracked.items():
        print(f"MLflow UI, {study}: http://127.0.0.1:{arguments.port}{page}", file=sys.stderr)
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with subprocess.Popen(command, env=os.environ | settings) as server:
        try:
            while server.poll() is None:
                with suppress(UserError):  # the next sync repeats a failed sync
                    sync(Path(plan["results"]), uri, Path(plan["figures"]))
                with suppress(subprocess.TimeoutExpired):
                    server.wait(SECONDS_BETWEEN_SYNCS)
        except KeyboardInterrupt:
            server.terminate()
    if server.returncode not in (0, -signal.SIGINT, -signal.SIGTERM):
        raise SystemExit(server.returncode)


def _pages(plan: Plan) -> dict[str, str]:
    """Return the page of each study in MLflow; track the runs first if MLflow has no study."""
    from formerlab.tracking.mlflow import pages, sync

    arguments = (plan["tracking_uri"], plan["scale"], list(plan["studies"]))
    try:
        tracked = pages(*arguments)
    except Exception as error:  # any error of MLflow or its database
        problem = f"not a database of this MLflow version ({reason(error)}); delete it and run `formerlab track`"
        raise UserError(f"{plan['tracking_uri']}: {problem}") from None
    if not tracked:
        with suppress(UserError):
            sync(Path(plan["results"]), plan["tracking_uri"], Path(plan["figures"]))
        tracked = pages(*arguments)
    return tracked
