"""Build the plan: every job with its resolved spec, code hash, inputs and cost, as one JSON value."""

from collections.abc import Callable, Container
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from formerlab.data import TokenizerFile
from formerlab.data.dataset import source_fingerprint
from formerlab.data.manifest import FILE_HASHES, MANIFEST, files_state
from formerlab.data.text.tokenizer import ReleasedTokenizer
from formerlab.errors import UserError, near_misses, resembling
from formerlab.files import fingerprint
from formerlab.plan import source_hashes
from formerlab.plan.code import MODULES_BY_HASH, code_hash, entries_of_training
from formerlab.plan.cost import (
    loader_resources,
    loading_cost,
    loading_hours,
    processes_of,
    run_cost,
    too_large_runs,
    totals,
)
from formerlab.plan.hardware import find_hardware
from formerlab.plan.measure import measure_jobs, timing_jobs
from formerlab.plan.public_data import check_public_data
from formerlab.plan.resolve import execution_keys, match_times, resolve_released, resolve_study
from formerlab.plan.schema import Study, StudyScale
from formerlab.plan.sources import Sources, read_sources, tokenizer_chain
from formerlab.plan.staleness import RECORDS, making_stage, run_jobs
from formerlab.report.catalogue import CatalogueEntry, catalogue
from formerlab.report.names import variant_styles
from formerlab.results.schema import CLAIMS
from formerlab.results.stages import MEASURED, STAGES, TIMED, WRITER
from formerlab.training.any_run import AnyRun

Job = dict[str, Any]


def build_plan(root: Path, command_line: Job) -> dict[str, Any]:
    """Return the plan of the configuration below `root`; values of the command line override the files.

    This needs no data and no network. Raises UserError with one line for the first mistake.
    """
    sources = read_sources(root, command_line)
    config, scale = sources.config, sources.scale
    device, threads = config.device or scale.device, config.threads or scale.threads
    results, figures = f"{config.results}/live/{config.scale}", f"{config.figures}/live/{config.scale}"
    data = _data_jobs(sources, root, f"{results}/data")
    runs = [run for name in sources.studies for run in resolve_study(name, sources)]
    released = [run for name in sources.studies for run in resolve_released(name, sources)]
    timing = {name: timing_jobs(stage, [*runs, *released], sources) for name, stage in TIMED.items()}
    runs, equal_times = match_times(runs, timing["speed"], sources)
    hardware = find_hardware(sources.config_tree, scale.hardware)
    parents = {run.init_id for run in runs if run.growth is not None and run.growth.optimizer == "carry"}
    train = {}
    for run in runs:
        processes = processes_of(run, scale, hardware, execution_keys(run, sources).gpus, carried=run.id in parents)
        gpus = processes["gpus"]
        cost = run_cost(run, scale, hardware, gpus, gpus if processes["sharded"] else 1)
        flexible = device == "cuda" and config.threads is None
        loader = loader_resources(run, scale.data[run.data], cost["hours"], gpus, threads=threads, flexible=flexible)
        cost["hours"] = max(cost["hours"], loading_hours(run, scale.data[run.data], gpus, loader["threads"]))
        weights_given = scale.studies.get(run.study, StudyScale()).given
        train[run.id] = _run_job(run, *entries_of_training(run)) | {
            "init": run.init_id,
            "keep_optimizer": run.id in parents,
            "cost": cost,
            **processes,
            **loader,
            "given": any(fnmatchcase(run.name, pattern) for pattern in weights_given),
            "equal_time": equal_times[run.id].to_dict() if run.id in equal_times else None,
        }
    _set_priorities(train)
    load = {
        run.id: _run_job(run, "formerlab.integrations.huggingface.released_run")
        | {
            "weights": files_state(run.model.source, root / results / ".released" / f"{run.model.name}.json"),
            "init": None,
            "cost": loading_cost(run, hardware),
        }
        for run in released
    }
    all_runs: list[AnyRun] = [*runs, *released]
    used_data = {name for run in all_runs for name in tokenizer_chain(run.data, scale.data)}
    unread = list[str]()
    # warn, because a study outside this plan may read it; a name that resembles a used name is probably misspelt
    for name in sorted(scale.data.keys() - used_data):
        file = sources.scale_tree.file_of("data", name)
        if file != sources.scale_tree.file:
            unread.append(f"{file}: data.{name}: no run reads it{near_misses(name, list(used_data))}")
            if resembling(name, list(used_data)):
                raise UserError(unread[-1])
    plan: dict[str, Any] = {
        "scale": config.scale,
        **scale.model_dump(include={"description", "memory_mb", "runtime_minutes", "hardware"}),
        "results": results,
        "figures": figures,
        "device": device,
        "threads": threads,
        "basis": hardware.basis,
        "tracking_uri": config.tracking_uri or "",
        "unread": unread,
        "studies": {
            name: study.model_dump(include={"title", "paper", "question"}) for name, study in sources.studies.items()
        },
        "data": {name: job for name, job in data.items() if name in used_data},
        **timing,
        "suites": {name: {"spec": suite.to_dict(), "state": suite.state()} for name, suite in scale.suites.items()},
        "train": train,
        "load": load,
    }
    for name, stage in MEASURED.items():
        plan[name] = measure_jobs(stage, all_runs, sources, hardware, plan["suites"], root / results)
    readable_data = {name for name, job in data.items() if job["source"] or (root / job["out"] / MANIFEST).exists()}
    _check_files(plan, readable_data, sources)
    for name, job in plan["data"].items():
        job["data_problem"] = check_public_data(name, scale.data[name], root, prepared=name in readable_data)
    plan["draw"] = _group_draw_jobs(_draw_jobs(plan, scale.labels), by_study=scale.draw_by_study)
    plan["exact"] = {CLAIMS: {"code": code_hash("formerlab.evaluation.exact")}}
    specs: list[Study | StudyScale] = [*sources.studies.values(), *scale.studies.values()]
    arms = [{name: claim.to_dict() for name, claim in spec.claims.items()} for spec in specs]
    plan["claims"] = {"code": code_hash("formerlab.report.claims.render"), "arms": fingerprint(arms)}
    plan["ledger"] = code_hash("formerlab.report.run_table")
    plan["jobs"] = fingerprint([sorted(plan[stage]) for stage in RECORDS])
    hashes = {job["code"] for stage in RECORDS for job in plan[stage].values()}
    plan["code"] = {code: list(MODULES_BY_HASH[code]) for code in sorted(hashes)}
    plan["sources"] = source_hashes.AT_START
    for name, study in plan["studies"].items():
        study["totals"] = totals([job["cost"] for job in (train | load).values() if job["study"] == name])
    plan["totals"] = totals([job["cost"] for job in run_jobs(plan).values()])
    plan["too_large"] = too_large_runs(runs, hardware)
    return plan


def _data_jobs(sources: Sources, root: Path, folder: str) -> dict[str, Any]:
    """Return the job of every data set; `source` is the fingerprint of its files, or None if no file is available."""
    jobs: dict[str, Any] = {}
    for name, spec in sources.scale.data.items():
        out = f"{folder}/{name}"
        source = source_fingerprint(spec, root / out / FILE_HASHES)
        code = code_hash(type(spec).__module__, specs=[spec])
        owner = next(iter(tokenizer_chain(name, sources.scale.data)[1:]), None)
        recipe = fingerprint(spec.recipe())
        job = {"spec": spec.to_dict(), "recipe": recipe, "code": code, "source": source, "tokenizer": owner}
        jobs[name] = {"out": out, **job}
    return jobs


def _check_files(plan: Job, readable_data: Container[str], sources: Sources) -> None:
    """Raise UserError if config.yaml, an overlay or the command line names a file that does not exist.

    Files of the scale are not checked, because they may be added later. Data sets in `readable_data` are available or
    prepared, and are not checked either.
    """
    scale = sources.scale
    searches: list[tuple[tuple[str, ...], str, Callable[[], object]]] = []
    for name, spec in scale.data.items():
        if name not in readable_data:
            searches.append((("data", name, "source"), f"data.{name}: ", spec.source.contents))
            tokenizer = getattr(spec, "tokenizer", None)
            if isinstance(tokenizer, TokenizerFile):
                searches.append((("data", name, "tokenizer"), f"data.{name}.tokenizer: ", tokenizer.load))
            if isinstance(tokenizer, ReleasedTokenizer):
                model = tokenizer.model
                searches.append((("released", model), f"released.{model}: ", scale.released[model].files))
    measured = [job["suites"] for stage in MEASURED for job in plan[stage].values()]
    unused = scale.suites.keys() - {name for suites in measured for name, state in suites.items() if state}
    searches += [(("suites", name), "", partial(scale.suites[name].files, name)) for name in sorted(unused)]
    for path, key, search in searches:
        if (file := sources.scale_tree.file_of(*path)) != sources.scale_tree.file:
            try:
                search()
            except (UserError, OSError) as error:
                raise UserError(f"{file}: {key}{error}") from None


def _run_job(run: AnyRun, *entries: str) -> dict[str, Any]:
    """Return the job of a trained or released run; `entries` are the modules that train or load it."""
    return {
        "study": run.study,
        "run": run.name,
        "seed": run.seed,
        "spec": run.to_dict(),
        "spec_hash": run.fingerprint(),
        "code": code_hash(*entries, specs=[run]),
        "data": run.data,
    }


def _set_priorities(train: Job) -> None:
    """Set the priority of each run to the predicted seconds until its last descendant ends."""
    longest: dict[str, int] = {}
    for run_id, job in reversed(train.items()):
        job["priority"] = longest.get(run_id, 0) + max(1, round(3600 * job["cost"]["hours"]))
        if job["init"]:
            longest[job["init"]] = max(longest.get(job["init"], 0), job["priority"])


def _draw_jobs(plan: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    """Return the figures and tables whose inputs are in the plan, by name, each with the files that it reads."""
    jobs = {}
    all_run_jobs = list(run_jobs(plan).values())
    runs = [(job["study"], job["run"], job["spec"]) for job in all_run_jobs]
    names_hash = fingerprint([variant_styles(), labels])
    for name, entry in catalogue().items():
        inputs, seeds = list[str](), dict[str, list[str]]()
        for job in (all_run_jobs[index] for index in entry.shown_indices(runs)):
            if files := _inputs(entry, job, plan):
                inputs += files
                seeds.setdefault(f"{job['study']}/{job['run']}", []).append(str(job["seed"]))
        if inputs:  # speed.csv and decode.csv are written once per study, so they are added once
            files = [f"{stage}.csv" for stage in TIMED if entry.study in plan[stage]]
            inputs += [f"{plan['results']}/{entry.study}/{file}" for file in files if file in entry.reads]
        rows = {path.rpartition("/")[2] for path in inputs} - {"run.json"}
        if rows or (inputs and set(entry.reads) == {"run.json"}):
            jobs[name] = {
                "study": entry.study,
                "inputs": inputs,
                "runs": [f"{run} (seed {', '.join(numbers)})" for run, numbers in seeds.items()],
                "outputs": [f"{plan['figures']}/{file}" for file in entry.outputs],
                "code": code_hash(entry.module, "formerlab.report.write"),
                "names": names_hash,
            }
    return jobs


def _group_draw_jobs(entries: dict[str, Any], *, by_study: bool) -> dict[str, Any]:
    """Group figures and tables into jobs, each named after its first figure or table.

    A job renders the figures that wait for the same jobs of a study or, with `by_study`, all figures of a study,
    because starting a process takes longer than rendering.
    """
    entries_by_job: dict[tuple[str, frozenset[tuple[str, str]]], dict[str, Any]] = {}
    for name, entry in entries.items():
        prerequisites = frozenset(
            (folder, WRITER[file]) for folder, _, file in (p.rpartition("/") for p in entry["inputs"])
        )
        entries_by_job.setdefault((entry["study"], frozenset() if by_study else prerequisites), {})[name] = entry
    return {
        next(iter(job_entries)): {
            "study": study,
            "entries": job_entries,
            "inputs": sorted({path for entry in job_entries.values() for path in entry["inputs"]}),
            "outputs": [path for entry in job_entries.values() for path in entry["outputs"]],
        }
        for (study, _), job_entries in entries_by_job.items()
    }


def _inputs(entry: CatalogueEntry, job: Job, plan: dict[str, Any]) -> list[str]:
    """Return the files of a run that a figure or table reads."""
    run_id = f"{job['study']}/{job['run']}/seed{job['seed']}"
    written = set(STAGES[making_stage(plan, run_id)].written)
    for name, stage in MEASURED.items():
        written.update(stage.tables if run_id in plan[name] else ())
    if not plan["prune"].get(run_id, {"settings": {}})["settings"].get("questions"):
        written.discard("prune_questions.csv")
    return [f"{plan['results']}/{run_id}/{file}" for file in entry.reads if file in written]
