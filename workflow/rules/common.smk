# Functions of the rules.

import re
import shlex

from snakemake.dag import DAG
from snakemake.jobs import Job

from formerlab.errors import some
from formerlab.plan.attempts import Attempts, command_output, already_running
from formerlab.report.catalogue import failure_file

ON_A_GPU = 1 if PLAN["device"] == "cuda" else 0
STALENESS = Staleness(PLAN)
ATTEMPTS = Attempts(STALENESS.folder)
# Only the main process checks staleness; the process of a submitted job always runs its job.
STALE = STALENESS.stale() if workflow.is_main_process else {}

# A cluster ends a job at its runtime. Training stops before, and the resubmitted job continues it.
TIME_LIMIT = (
    ""
    if workflow.is_main_process
    else "--time-limit $(({resources.runtime} * 60)) --margin 60 "
)


def failed_entries(job):
    """Return the error notes of the figures and tables of a job that failed, by name."""
    notes = {name: failure_file(Path(FIGURES), name) for name in job["drawings"]}
    return {name: note for name, note in notes.items() if note.exists()}


FAILURES = [
    note for job in PLAN["draw"].values() for note in failed_entries(job).values()
]
STALE_LIST = None
if workflow.is_main_process and (STALE or FAILURES):
    STALE_LIST = STALENESS.write_stale(ROOT / ".formerlab/stale", FAILURES)


def name_of(wildcards):
    """Return the name of a job within its stage: a run, a study or a data set."""
    return str(wildcards[0]) if len(wildcards) else CLAIMS


def names_pattern(units):
    """Return a pattern that matches exactly these runs or studies."""
    return "|".join(map(re.escape, units)) or "(?!)"


def records(*stages):
    """Return the records of all jobs of these stages."""
    return [
        f"{RESULTS}/{unit}/{STAGES[stage].record}"
        for stage in stages
        for unit in PLAN[stage]
    ]


def reading(stage, *functions):
    """Return the input function of a stage.

    It returns the records of the jobs that a job depends on, and the files that `functions` return.

    With these inputs Snakemake runs exactly the jobs that are not up to date. A stale job also reads the list of stale
    outputs, which is newer than its output. For a job that is up to date, modification times are ignored, because
    copying changes them. All other jobs have no output.
    """

    def files(wildcards):
        job = (stage, name_of(wildcards))
        dependencies = [
            STALENESS.record(*dependency).relative_to(RESULTS)
            for dependency in STALENESS.dependencies(*job)
        ]
        added = [file for function in functions for file in function(wildcards)]
        inputs = [*(f"{RESULTS}/{record}" for record in dependencies), *added]
        if job in STALE:
            return [*inputs, STALE_LIST]
        current = workflow.is_main_process and STALENESS.check(*job).current
        return [ancient(file) for file in inputs] if current else inputs

    return files


def weights(wildcards):
    """Return the weights of a trained run; return no file for a released model."""
    trained = wildcards.id not in PLAN["load"]
    return [f"{RESULTS}/{wildcards.id}/weights.safetensors"] if trained else []


def all_cores(wildcards):
    """Return all cores, so that no other job runs at the same time; a cluster job has an exclusive node."""
    return workflow.cores if workflow.local_exec else PLAN["threads"]


def timing_memory(stage):
    """Return a function that returns the host memory, in MiB, of a job that times the runs of a study."""

    def needed(wildcards):
        memory_bytes = PLAN[stage][wildcards.study]["memory_bytes"]
        return PLAN["memory_mb"] * 2 + memory_bytes // 2**20

    return needed


def memory(stage, first):
    """Return a function that returns the host memory of a job in MiB: `first`, plus half of `first` for each time that
    Slurm killed the job for its memory, at most three times `first`."""

    def requested(wildcards, attempt):
        kills = 0
        if workflow.is_main_process:
            kills = ATTEMPTS.memory_kills(stage, name_of(wildcards), attempt)
        return int(first(wildcards) * min(3, 1 + 0.5 * kills))

    return requested


def common_memory(wildcards):
    """Return the host memory of a job in MiB: twice the scale's memory, plus the memory of a released model."""
    job = PLAN["load"].get(wildcards.get("id"))
    weights_mb = job["cost"]["memory_bytes"] // 2**20 if job else 0
    return 2 * PLAN["memory_mb"] + weights_mb


def training_memory(wildcards):
    """Return the host memory of a training run in MiB."""
    cost = PLAN["train"][wildcards.id]["cost"]
    # With GPUs, every process builds the weights on the host, and all processes share one memory-mapped checkpoint.
    need = (
        cost["memory_bytes"] * processes_per_node(wildcards)
        if PLAN["device"] == "cpu"
        else 4 * (3 + processes_per_node(wildcards)) * cost["parameters"]
    )
    loader = PLAN["train"][wildcards.id]["loader_bytes"] * processes_per_node(wildcards)
    return PLAN["memory_mb"] + (1.5 * need + loader) / 2**20


def processes_per_node(wildcards):
    """Return the number of processes of a run on each machine."""
    job = PLAN["train"][wildcards.id]
    return job["gpus"] // job["nodes"]


def gpus(wildcards):
    """Return the number of GPUs of a run on one machine; for several machines, `slurm_gpus` requests them."""
    job = PLAN["train"][wildcards.id]
    return job["gpus"] if PLAN["device"] == "cuda" and job["nodes"] == 1 else 0


def nodes(wildcards):
    """Return the number of machines of a run; without this request, Slurm may spread its GPUs over several machines."""
    return PLAN["train"][wildcards.id]["nodes"]


def tasks(wildcards):
    """Return the number of Slurm tasks of a run on several machines, one per machine."""
    return nodes(wildcards) if nodes(wildcards) > 1 else None


def launcher(wildcards):
    """Return the value of the executor's option `mpi`: srun for a run on several machines, otherwise None."""
    return "srun" if tasks(wildcards) else None


def slurm_gpus(wildcards):
    """Return Slurm's option for the GPUs per machine of a run on several machines."""
    several = tasks(wildcards) and PLAN["device"] == "cuda"
    return f"--gpus-per-node={processes_per_node(wildcards)}" if several else None


def minutes(stage):
    """Return a function that returns the time limit of a job in minutes: twice the predicted time plus 10, at most the
    limit of the scale; without a prediction, the limit of the scale."""

    def requested(wildcards):
        cost = PLAN[stage][wildcards.id].get("cost")
        predicted = 10 + 120 * cost["hours"] if cost else PLAN["runtime_minutes"]
        return min(PLAN["runtime_minutes"], int(predicted))

    return requested


# Snakemake would delete the files of a stage before a job starts and after it fails, even while another process runs
# this job.
async def keep_files(job, *arguments):
    """Delete nothing."""


Job.remove_existing_output = Job.cleanup = keep_files


# `--until train` would end at every run, even at the parent of another run, and Snakemake would report an internal
# error. With this patch, `--until train` ends at runs that are not parents.
ends_at = DAG.in_until


def ends_at_last(dag, job):
    """Return whether `--until` ends at a job and no other job of the same rule reads its output."""
    return ends_at(dag, job) and not any(
        reader.rule is job.rule for reader in dag.depending[job]
    )


DAG.in_until = ends_at_last


# Snakemake repeats every failed job up to `retries` times. This patch repeats only stages, and only if a new attempt
# may succeed.
retries_allowed = Job.restart_times.fget


def retries_left(job):
    """Return how often a job may be retried; 0 if a retry would fail as well."""
    stage = job.rule.name
    retry = stage in STAGES and ATTEMPTS.should_retry(
        stage, name_of(job.wildcards), job.attempt
    )
    return retries_allowed(job) if retry else 0


if workflow.is_main_process:
    Job.restart_times = property(retries_left)


def submitted_before(job):
    """Return the id of a cluster job that an earlier call submitted and that waits, or None.

    The executor's status command prints `running` for waiting and running jobs; the Slurm executor has no such command.
    Snakemake forgets the id when the job starts. From then on the job's note names its process.
    """
    command = getattr(workflow.executor_settings, "status_cmd", None)
    for number in workflow.persistence.external_jobids(job) if command else ():
        answer = command_output("sh", "-c", f"{command} {shlex.quote(number)}")
        if answer and answer.strip() == "running":
            return number
    return None


def refuse_running_jobs():
    """Raise WorkflowError if another process runs a job of this call, for example after Snakemake was killed."""
    stages = {
        (job.rule.name, name_of(job.wildcards)): submitted_before(job)
        for job in workflow.dag.needrun_jobs()
        if job.rule.name in STAGES
    }
    if busy := already_running(stages, STALENESS.folder, ROOT):
        raise WorkflowError(busy)


def draw_jobs():
    """Return the jobs of this call that render figures and tables."""
    rules = {job.rule.name for job in workflow.dag.jobs}
    return [job for name, job in PLAN["draw"].items() if f"draw_{name}" in rules]


def track_after_training():
    """Track the runs in MLflow after a call that includes training but not the rule `track`."""
    rules_of_call = {job.rule.name for job in workflow.dag.jobs}
    left_out = "track" not in rules_of_call and rules_of_call & {*MAKING}
    if PLAN["tracking_uri"] and left_out:
        shell("python -m formerlab track")


def count_failed_entries():
    """Raise WorkflowError if figures or tables of this call failed."""
    if failed := [name for job in draw_jobs() for name in failed_entries(job)]:
        problem = f"{len(failed)} of the figures and tables could not be rendered ({some(failed)})"
        again = "the same command renders them again"
        raise WorkflowError(f"{problem}: python -m formerlab status says why; {again}")


# The received signals SIGINT and SIGHUP. At SIGTERM, Snakemake waits for running jobs.
SIGNALS = []


def interrupt(number, frame):
    """End Snakemake like Ctrl-C, and record the signal."""
    SIGNALS.append(number)
    raise KeyboardInterrupt


def after_a_failure():
    """Render the figures and tables of this call that have rows, and list failed jobs, unless a signal was received."""
    if SIGNALS or workflow.scheduler._user_kill:
        print(SAFE, file=sys.stderr)
        return
    names = [name for job in draw_jobs() for name in job["drawings"]]
    shell("python -m formerlab rescue --only {names:q} || true")
