"""The commands of `python -m formerlab`: output, exit status, and the shell script that replaces the DAG."""

import errno
import os
import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures.project import Project, write_records

from formerlab import __main__, errors
from formerlab.__main__ import build_parser, main
from formerlab.cache import CachePolicy
from formerlab.commands import tools
from formerlab.commands.context import PLAN_VARIABLE
from formerlab.data.manifest import MANIFEST, SCHEMA
from formerlab.evaluation.pruning.long_context import TASKS
from formerlab.files import read_json, sha256, write_json
from formerlab.layers.depth.union import DepthMixer
from formerlab.plan import locate
from formerlab.plan.build import build_plan
from formerlab.plan.locate import ensure_plan
from formerlab.report.catalogue import catalogue
from formerlab.results.stages import MAKING, MEASURED, TIMED
from formerlab.spec import variants


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PLAN_VARIABLE, raising=False)
    return Project(tmp_path)


def output(capsys, *words):
    """Run a command that succeeds; return its output."""
    assert main([*words]) == 0
    return capsys.readouterr().out


def error_of(capsys, *words):
    """Run a command that fails and return its one-line message."""
    assert main([*words]) == errors.EXIT_USER_ERROR
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip("\n")


COMMANDS = next(action for action in build_parser()._actions if action.dest != "help").choices


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: formerlab {command}")


def test_the_overview_lists_at_most_20_commands_in_groups_and_the_stages(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed, _, stage_help = capsys.readouterr().out.partition("called by Snakemake")
    lines = dict(re.findall(r"^  ([a-z][a-z-]+) +(\S.*)$", listed, re.MULTILINE))
    assert len(lines) <= 20
    assert all(COMMANDS[command].description == line for command, line in lines.items())
    assert set(stage_help.partition(":\n")[2].split()) == set(COMMANDS) - set(lines) > {*MAKING, *MEASURED, *TIMED}


def test_list_prints_policies_mixers_and_tasks_with_their_options(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(map(len, (variants(CachePolicy), variants(DepthMixer), TASKS))) + 4
    for line in (
        "  decay scope=group alpha=0.2  after every token  S[k] <- alpha S[k] + p[k]: decay first",
        "  snapkv window=64 kernel=5  once, after the prompt  S[k] = mean",
        "  pyramid POLICY LAYERS last=0.05  wraps another policy  Divide",
        "  ideal  simulation only  Each query",
        "  dwa dilation=1 period=1  Y_i = sum",
        "  needle_single  answers of at most 128 tokens",
    ):
        assert len([printed for printed in lines if printed.startswith(line)]) == 1
    assert main(["list", "mixers"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(variants(DepthMixer)) + 1


def test_a_new_project_has_the_plan_of_the_checkout(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "it's mine"
    assert main(["init", str(folder)]) == 0
    capsys.readouterr()
    assert error_of(capsys, "init", str(folder)).endswith("exists and is not empty; choose a new folder")
    plan_of_checkout, plan_of_project = (
        build_plan(root, {"scale": "smoke"}) for root in (Path(__file__).parents[1], folder)
    )
    assert plan_of_checkout["train"] == plan_of_project["train"]


def test_a_project_from_a_read_only_package_can_be_edited(tmp_path, monkeypatch):
    template = tmp_path / "package"
    shutil.copytree(Path(tools.__file__).parents[2] / "formerlab_project", template)
    for path in (template, *template.rglob("*")):
        path.chmod(path.stat().st_mode & 0o555)
    monkeypatch.setattr(tools, "files", lambda _: template)
    assert main(["init", str(tmp_path / "mine")]) == 0
    locked = [path for path in (tmp_path / "mine").rglob("*") if not path.stat().st_mode & 0o200]
    assert locked == []


def test_claims_are_read_from_the_folder_of_the_plan(project, tmp_path, monkeypatch):
    plan = ensure_plan(Path.cwd(), {})
    assert locate.root_of(plan) == tmp_path.resolve()
    assert locate.root_of(tmp_path / "plan.json") == Path()
    roots = []
    monkeypatch.setattr("formerlab.report.claims.render.write_claims", lambda results, arms, out: [])
    monkeypatch.setattr("formerlab.report.claims.arms.read_arms", lambda root, scale: roots.append(root))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Path(locate.read_plan(plan)["results"]).mkdir(parents=True)
    assert main(["claims", "--plan", str(plan), "--out", "out"]) == 0
    assert roots == [tmp_path.resolve()]


@pytest.mark.parametrize(
    ("name", "value"), [("MPLBACKEND", "module://matplotlib_inline.backend_inline"), (PLAN_VARIABLE, "")]
)
def test_invalid_or_empty_environment_variables_are_ignored(name, value, project, capsys, monkeypatch):
    monkeypatch.setenv(name, value)
    assert main(["status"]) == 0
    assert os.environ["MPLBACKEND"] == "agg", "matplotlib refuses an unknown backend"


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        (errors.UserError("a: b; c"), 2, "error: a: b; c\n"),
        (errors.StoppedEarly("saved after step 3"), 75, "saved after step 3\n"),
        (KeyboardInterrupt(), 75, "interrupted; finished work is saved"),
        (BrokenPipeError(), 1, ""),
        (ZeroDivisionError("why"), 1, "ZeroDivisionError: why\n"),
    ],
)
def test_exit_status_of_errors(raised, status, text, monkeypatch, capsys):
    def fail(arguments):
        raise raised

    fail.__name__ = "status"
    monkeypatch.setattr(__main__.plan, "status", fail)
    assert main(["status"]) == status
    assert text in capsys.readouterr().err


def test_plan_shows_every_run_and_the_totals(project, capsys):
    text = output(capsys, "plan")
    runs = ("plain", "parent", "child", "deep-3", "deep-4")
    assert all(f"\nsmall/{run} x 2 " in text for run in runs)
    text = output(capsys, "plan", "--seeds")
    assert text.startswith("scale smoke: tiny\n")
    for run in runs:
        assert all(f"small/{run}/seed{seed} " in text for seed in (0, 1))
    assert "= small: 10 runs" in text
    assert re.search(r"small/child/seed1 .*small/parent/seed1\n", text)


def test_plan_follows_scale_set_and_overlay(project, capsys):
    assert "= all: 5 runs" in output(capsys, "plan", "--set", "seeds=[4]")
    project.write("mine.yaml", "seeds: [4, 5, 6]")
    assert "= all: 15 runs" in output(capsys, "plan", "--overlay", "mine.yaml")
    assert error_of(capsys, "plan", "--scale", "paper").startswith(
        "command line: scale: no scale 'paper'; known names: smoke"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--set small.stepps=3", "command line: set: small.stepps: unknown key (value 3); did you mean steps?"),
        ("--set small.steps", "--set small.steps: expected KEY=VALUE"),
        ("--set 'scale={1: 2, a: 3}'", "command line: set: scale: 1: unknown key (value 2); remove it"),
        ("--set small.steps=[3", "--set small.steps=[3: '[3' is not a YAML value; put it in quotes"),
        ("--set results=2025-31-01", "--set results=2025-31-01: '2025-31-01' is not a YAML value; put it in quotes"),
        ("--overlay mine.yaml", "mine.yaml: no such file; did you mean config.yaml?"),
        ("--plan missing.json", "missing.json: not a plan ([Errno 2]"),
        ("--plan missing.json --set seeds=[1]", "--plan: --set and --overlay cannot change"),
        ("train small/plian/seed0", "no job 'small/plian/seed0' of stage train at scale smoke; did you mean small/"),
        ("prune x", "no job 'x' of stage prune at scale smoke; known names: small/plain/seed0, small/plain/seed1"),
        ("ui --set tracking_uri=http://127.0.0.1:9", "tracking_uri: http://127.0.0.1:9 is a server; open it in a brow"),
        ("init config.yaml/mine", "config.yaml/mine: Not a directory; choose another"),
        ("demo --plan mine.json", "--plan: demo makes its own plan"),
    ],
)
def test_user_errors_give_a_one_line_error(project, capsys, words, line):
    """A row that begins with an option is run as `status` with this option."""
    words = shlex.split(words)
    assert error_of(capsys, *(["status"] if words[0].startswith("-") else []), *words).startswith(line)


def test_the_ui_refuses_an_unavailable_port(project, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        for port in ("99999", str(server.getsockname()[1])):
            assert error_of(capsys, "ui", "--port", port).startswith(f"--port: {port} is in use or invalid; choose")


def test_unread_data_are_listed(project, capsys):
    project.merge_into(project.config, "data: {corpus: {kind: text, source: {kind: files, paths: [notes.txt]}}}")
    Path("notes.txt").write_text("Some text.")
    assert "config.yaml: data.corpus: no run reads it; known names: text" in output(capsys, "plan")


def test_jobs_keep_their_plan_if_the_configuration_changes(project, capsys, monkeypatch):
    monkeypatch.setenv(PLAN_VARIABLE, str(ensure_plan(project.root, {})))
    project.merge_into(project.config, "seeds: [4]")
    for command in (["status"], ["plan", "--seeds"]):
        assert "small/plain/seed4" not in output(capsys, *command)
    assert "small/plain/seed4" in output(capsys, "status", "--set", "small.steps=3")
    monkeypatch.delenv(PLAN_VARIABLE)
    assert "small/plain/seed4" in output(capsys, "status")


def test_check_fails_if_the_disk_is_too_small(project, capsys, monkeypatch):
    assert output(capsys, "check") == ""
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1))
    line = error_of(capsys, "check")
    assert "1B free, but the 10 missing runs need about 1" in line
    assert line.endswith("free disk space, or set the key `results` to a folder on another disk")


def test_check_verifies_the_data_of_missing_jobs(project, capsys):
    plan = project.plan()
    write_records(plan, ("data", "text"))
    out = Path(plan["data"]["text"]["out"])
    (out / "train.npy").write_bytes(b"tokens")
    splits = {"train": {"file": "train.npy", "sha256": sha256(out / "train.npy")}}
    write_json(
        out / MANIFEST, read_json(out / MANIFEST) | {"schema": SCHEMA, "spec": {}, "splits": splits, "questions": []}
    )
    assert output(capsys, "check") == ""
    (out / "train.npy").write_bytes(b"token5")
    assert "train.npy: damaged or changed" in error_of(capsys, "check")
    write_records(plan)
    assert output(capsys, "check") == ""


def test_rescue_without_failed_jobs(project, capsys):
    text = output(capsys, "rescue")
    assert text.startswith("no failed, killed or stopped jobs\n")
    assert text.endswith("the same command continues where this one stopped.\n")


def test_rescue_renders_only_selected_entries_with_rows(project, capsys, monkeypatch):
    """Regression test: `rescue` rendered hundreds of empty figures after a failure in one study."""
    names = ["tokenformer_cost", "denseformer_depth"]
    entries = {name: {"outputs": [f"figures/{file}" for file in catalogue()[name].outputs]} for name in names}
    write_json(project.root / "plan.json", project.plan() | {"draw": {"all": {"entries": entries}}})
    (project.root / "results/live/smoke").mkdir(parents=True)
    assert "no failed, killed or stopped jobs" in output(capsys, "rescue", "--plan", "plan.json")
    assert not (project.root / "figures").exists()
    rendered = []
    monkeypatch.setattr("formerlab.report.write.draw_each", lambda names, *_, skip_empty: rendered.append(names))
    for words in ([], ["--only", "denseformer_depth"], ["--only"]):
        output(capsys, "rescue", "--plan", "plan.json", *words)
    assert rendered == [names, ["denseformer_depth"]]


def commands(script):
    return [line.split(" ", 3)[3] for line in script.splitlines() if line.startswith("python -m formerlab ")]


def test_the_shell_script_has_all_stages_in_the_order_of_dependencies(project, capsys):
    script_commands = commands(output(capsys, "plan", "--shell"))
    runs = [f"small/{run}/seed{seed}" for run in ("plain", "parent", "child", "deep-3", "deep-4") for seed in (0, 1)]
    assert script_commands[0] == "data text"
    assert sorted(script_commands[1:11]) == sorted(f"train {run}" for run in runs)
    for seed in (0, 1):
        assert script_commands.index(f"train small/parent/seed{seed}") < script_commands.index(
            f"train small/child/seed{seed}"
        )
    evaluations = [f"{stage} small/plain/seed{seed}" for stage in ("zeroshot", "prune") for seed in (0, 1)]
    assert script_commands[11:15] == evaluations
    assert script_commands[-1] == "track"


def test_the_shell_script_omits_finished_jobs(project, capsys):
    everything = commands(output(capsys, "plan", "--shell"))
    finished_jobs = [("data", "text"), ("train", "small/parent/seed0"), ("train", "small/plain/seed0")]
    results = write_records(project.plan(), *finished_jobs, ("prune", "small/plain/seed0"))
    omitted = {"data text", "train small/parent/seed0", "train small/plain/seed0", "prune small/plain/seed0"}
    assert commands(output(capsys, "plan", "--shell")) == [line for line in everything if line not in omitted]
    (results / "small/parent/seed0/run.json").write_text("{}")
    expected = [line for line in everything if line not in omitted - {"train small/parent/seed0"}]
    assert commands(output(capsys, "plan", "--shell")) == expected


def test_the_shell_script_runs_to_its_end(project, capsys):
    """The script runs with a fake python, in a folder whose name must be quoted."""
    folder_with_quotes = project.root / "it's a folder"
    folder_with_quotes.mkdir()
    for name in ("config.yaml", "workflow"):
        os.rename(project.root / name, folder_with_quotes / name)
    os.chdir(folder_with_quotes)
    script = output(capsys, "plan", "--shell")
    fake_python = folder_with_quotes / "bin" / "python"
    fake_python.parent.mkdir()
    fake_python.write_text('#!/bin/sh\necho "$*" >> calls\n[ -f "$FORMERLAB_PLAN" ] && [ "$OMP_NUM_THREADS" = 1 ]\n')
    fake_python.chmod(0o755)
    environment = os.environ | {"PATH": f"{fake_python.parent}:{os.environ['PATH']}"}
    result = subprocess.run(["bash"], input=script, text=True, env=environment, capture_output=True)
    assert (result.returncode, result.stderr) == (0, "")
    calls = (folder_with_quotes / "calls").read_text().splitlines()
    assert [call.removeprefix("-m formerlab ") for call in calls] == commands(script)
    fake_python.write_text("#!/bin/sh\nexit 1\n")
    assert subprocess.run(["bash"], input=script, text=True, env=environment).returncode == 1


def test_the_demo_passes_all_values_to_snakemake(project, monkeypatch, capsys):
    from snakemake.cli import parse_config

    commands = []
    monkeypatch.setattr(
        "subprocess.Popen", lambda words, **_: commands.append(words) or SimpleNamespace(wait=lambda: 1)
    )
    values = {"small.optimizer.lr": "1.0e-7", "small.runs.child.growth.keys": "random", "seeds": "[3, 4]"}
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    Path("results/live/smoke").mkdir(parents=True)
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--scale", "smoke", "--cores", "1", *words])
    assert caught.value.code == 1
    output_text = capsys.readouterr().out
    assert f"python -m formerlab ui --scale smoke {shlex.join(words)}\n" in output_text
    (command,) = commands
    config = locate.typed(parse_config(command[command.index("--config") + 1 :]))
    values = {"small.optimizer.lr": 1.0e-7, "small.runs.child.growth.keys": "random", "seeds": [3, 4]}
    assert config == {"scale": "smoke", "set": values}
    assert ensure_plan(project.root, config)


def test_an_os_error_and_an_invalid_plan_file_give_one_line(project, capsys, monkeypatch):
    def refuse(_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "results/run.json")

    monkeypatch.setattr("formerlab.commands.plan.read_plan", refuse)
    assert error_of(capsys, "plan").startswith(f"results/run.json: {os.strerror(errno.EROFS)}")
    Path("empty.json").write_text("{}")
    assert error_of(capsys, "check", "--plan", "empty.json").startswith("empty.json: not a plan")
