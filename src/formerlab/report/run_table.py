"""The run table: every finished run with its cost and provenance, and the costs by study."""

from pathlib import Path

from pandas import DataFrame

from formerlab.files import write_text
from formerlab.report.pages import format_table, heading, html_page, html_table, paragraph
from formerlab.results.read import Results, flatten

COLUMNS = (
    *("study", "run", "seed", "status", "plan", "data.name", "data.fingerprint", "init.id", "parameters", "tokens"),
    *("flops", "flops_cumulative", "training_time_s", "wall_time_s", "outside_steps", "peak_memory_bytes"),
    "model_flops_utilisation",
    *("device", "threads", "host", "git.commit", "git.dirty_hash", "code_hash", "spec_hash"),
    *("versions.python", "versions.torch", "versions.formerlab", "started", "finished"),
)
"""Columns of runs.csv: keys of run.json; `plan`, which is `as planned`, a reason why the run is stale, or empty; and
`outside_steps`, the fraction of the run's wall-clock time outside training steps."""
HTML_COLUMNS = (
    *("run", "seed", "status", "plan", "parameters", "tokens", "flops", "flops_cumulative", "training_time_s"),
    *("outside_steps", "peak_memory_megabytes", "data", "device", "commit_code_spec", "torch", "finished_UTC"),
)
"""Columns of runs.html."""


def run_table(results: Results) -> DataFrame:
    """Return a row per finished run and seed, including stale runs. Cells of missing keys are empty."""
    staleness_reason = results.staleness_reason
    records = [
        flatten(record)
        | {"plan": (staleness_reason("train", record["id"]) or "as planned") if staleness_reason else ""}
        for record in results.all_records.values()
    ]
    rows = DataFrame(records).reindex(columns=list(COLUMNS))
    return rows.assign(outside_steps=1 - rows["training_time_s"] / rows["wall_time_s"])


def costs_by_study(rows: DataFrame) -> DataFrame:
    """Return the cost of each study: runs, tokens, FLOPs without ancestors, training and wall-clock hours."""
    groups = rows.assign(diverged=rows["status"] == "diverged").groupby("study")
    sums = groups[["diverged", "tokens", "flops", "training_time_s", "wall_time_s"]].sum()
    training, wall = sums["training_time_s"] / 3600, sums["wall_time_s"] / 3600
    columns = {
        "runs": groups.size(),
        "diverged": sums["diverged"],
        "tokens": sums["tokens"].map("{:.4g}".format),
        "FLOPs": sums["flops"].map("{:.4g}".format),
        "training (hours)": training.map("{:.2f}".format),
        "wall clock (hours)": wall.map("{:.2f}".format),
        "outside steps": (1 - training / wall).map("{:.0%}".format),
        "devices": groups["device"].agg(lambda names: ", ".join(sorted(set(names.dropna())))),
    }
    return DataFrame(columns).reset_index()


def write_run_table(results: Results, out: Path) -> list[Path]:
    """Write runs.csv (all columns) and runs.html (for readers) into `out`; return their paths."""
    rows, paths = run_table(results), [out / "runs.csv", out / "runs.html"]
    write_text(paths[0], rows.to_csv(index=False, lineterminator="\n"))
    notes = (
        "Cumulative FLOPs include the ancestors of a run; FLOPs do not. Times are wall-clock times on the named "
        "device. Time outside steps is for startup, validation, tests and writing files. The folder of a run has its "
        "rows and run.json, with all of these values and the resolved spec."
    )
    blocks = [paragraph(notes), heading("Cost by study"), html_table(costs_by_study(rows))]
    for study, group in rows.groupby("study"):
        blocks += [heading(str(study)), html_table(_readable(group))]
    write_text(paths[1], html_page(f"Runs at scale {results.scale}, {results.tree} results", blocks))
    return paths


def format_text(results: Results) -> str:
    """Return the costs by study and a line per run, for a terminal."""
    rows = run_table(results)
    if rows.empty:
        return f"no finished run in {results.root} yet; `make demo` trains the runs of scale laptop"
    lines = _readable(rows).drop(columns=["data", "commit code spec", "torch", "device"], errors="ignore")
    lines.insert(0, "study", rows["study"])
    return f"{costs_by_study(rows).to_string(index=False)}\n\n{lines.to_string(index=False)}"


def _readable(rows: DataFrame) -> DataFrame:
    uncommitted = rows["git.dirty_hash"].notna().map({True: " + changes", False: ""})
    commits, code, spec = (rows[name].fillna("") for name in ("git.commit", "code_hash", "spec_hash"))
    rows = rows.assign(
        data=rows["data.name"] + " " + rows["data.fingerprint"].astype(str).str[:10],
        commit_code_spec=commits.str[:10] + uncommitted + "\n" + code + "\n" + spec,
        torch=rows["versions.torch"],
        peak_memory_megabytes=rows["peak_memory_bytes"] / 1e6,
        finished_UTC=rows["finished"].str[:19],
    )
    return format_table(rows[[*HTML_COLUMNS]])
