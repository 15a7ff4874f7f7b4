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
# Only the main process checks which outputs are stale. The process of a submitted job always runs its job.
STALE = STALENESS.stale() if workflow.is_main_process else {}

# The scheduler kills a job at its time limit (`runtime`). Training stops one minute earlier, and the resubmitted job
# resumes it.
TIME_LIMIT = (
    ""
    if workflow.is_main_process
    else "--time-limit $(({resources.runtime} * 60)) --margin 60 "
)


def failed_figures(job):
    """Return the paths of the error notes of a job's failed figures and tables, by figure or table name."""
    notes = {name: failure_file(Path(FIGURES), name) for name in job["entries"]}
    return {name: note for name, note in notes.items() if note.exists()}


FAILURES = [
    note for job in PLAN["draw"].values() for note in failed_figures(job).values()
]
STALE_LIST = None
if workflow.is_main_process and (STALE or FAILURES):
    STALE_LIST = STALENESS.write_stale(ROOT / ".formerlab/stale", FAILURES)


def job_name(wildcards):
    """Return the name of a job within its stage: a run, a study or a data set, or CLAIMS for a rule without wildcards."""
    return str(wildcards[0]) if len(wildcards) else CLAIMS


def names_pattern(ids):
    """Return a pattern that matches exactly these runs or studies."""
    return "|".join(map(re.escape, ids)) or "(?!)"


def record_files(*stages):
    """Return the records of all jobs of these stages."""
    return [
        f"{RESULTS}/{unit}/{STAGES[stage].record}"
        for stage in stages
        for unit in PLAN[stage]
    ]


def input_function(stage, *functions):
    """Return the input function of a stage.

    The input function returns the records of the jobs that a job depends on, and the files that `functions` return.

    With these inputs Snakemake runs exactly the jobs that are not up to date. A stale job also reads the list of stale
    outputs, which is newer than its output. The inputs of an up-to-date job are marked `ancient`, so Snakemake ignores
    their modification times, which change if the results are copied. A job that is neither stale nor up to date has no
    output yet, so Snakemake runs it.
    """

    def files(wildcards):
        job = (stage, job_name(wildcards))
        dependencies = [
            STALENESS.record(*dependency).relative_to(RESULTS)
            for dependency in STALENESS.dependencies(*job)
        ]
        added = [file for function in functions for file in function(wildcards)]
        inputs = [*(f"{RESULTS}/{record}" for record in dependencies), *added]
        if job in STALE:
            return [*inputs, STALE_LIST]
        up_to_date = workflow.is_main_process and STALENESS.check(*job).current
        return [ancient(file) for file in inputs] if up_to_date else inputs

    return files


def weights(wildcards):
    """Return the weights file of a trained run, or an empty list for a released model."""
    trained = wildcards.id not in PLAN["load"]
    return [f"{RESULTS}/{wildcards.id}/weights.safetensors"] if trained else []


def all_cores(wildcards):
    """Return the number of Snakemake's cores, so that no other local job runs at the same time.

    A cluster job gets the threads of the plan; on Slurm it has an exclusive node.
    """
    return workflow.cores if workflow.local_exec else PLAN["threads"]


def timing_memory(stage):
    """Return a function that returns the host memory, in MiB, of a job that times the runs of a study."""

    def needed(wildcards):
        memory_bytes = PLAN[stage][wildcards.study]["memory_bytes"]
        return PLAN["memory_mb"] * 2 + memory_bytes // 2**20

    return needed


def memory(stage, first):
    """Return a function that returns the host memory of a job in MiB.

    The first request is `first(wildcards)`. Each out-of-memory kill by Slurm adds half of it, up to three times the
    first request.
    """

    def requested(wildcards, attempt):
        kills = 0
        if workflow.is_main_process:
            kills = ATTEMPTS.memory_kills(stage, job_name(wildcards), attempt)
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
    """Return the number of processes per machine of a run."""
    job = PLAN["train"][wildcards.id]
    return job["gpus"] // job["nodes"]


def gpus(wildcards):
    """Return the number of GPUs of a run on one machine, or 0 for a run on several machines (see `slurm_gpus`)."""
    job = PLAN["train"][wildcards.id]
    return job["gpus"] if PLAN["device"] == "cuda" and job["nodes"] == 1 else 0


def nodes(wildcards):
    """Return the number of machines of a run. Without this request, Slurm may spread the run's GPUs over more machines."""
    return PLAN["train"][wildcards.id]["nodes"]


def tasks(wildcards):
    """Return the number of Slurm tasks of a run on several machines (one per machine), otherwise None."""
    return nodes(wildcards) if nodes(wildcards) > 1 else None


def launcher(wildcards):
    """Return the value of the executor's option `mpi`: srun for a run on several machines, otherwise None."""
    return "srun" if tasks(wildcards) else None


def slurm_gpus(wildcards):
    """Return Slurm's option for the GPUs per machine of a run on several machines, otherwise None."""
    several = tasks(wildcards) and PLAN["device"] == "cuda"
    return f"--gpus-per-node={processes_per_node(wildcards)}" if several else None


def minutes(stage):
    """Return a function that returns the time limit of a job in minutes.

    The time limit is twice the predicted time plus 10 minutes, at most the limit of the scale. A job without a prediction
    gets the limit of the scale.
    """

    def requested(wildcards):
        cost = PLAN[stage][wildcards.id].get("cost")
        predicted = 10 + 120 * cost["hours"] if cost else PLAN["runtime_minutes"]
        return min(PLAN["runtime_minutes"], int(predicted))

    return requested


# Without this patch, Snakemake deletes the files of a job before it starts and after it fails, even while another process
# runs the same job.
async def keep_files(job, *arguments):
    """Keep the files of the job."""


Job.remove_existing_output = Job.cleanup = keep_files


# Without this patch, `--until train` ends at every run, even at the parent of another run, and Snakemake reports an
# internal error. With this patch, `--until train` ends only at runs that are not parents.
original_in_until = DAG.in_until


def in_until_last(dag, job):
    """Return whether `--until` ends at a job and no other job of the same rule reads the output of this job."""
    return original_in_until(dag, job) and not any(
        reader.rule is job.rule for reader in dag.depending[job]
    )


DAG.in_until = in_until_last


# Snakemake retries every failed job up to `retries` times. With this patch, only stages are retried, and only if
# `Attempts.should_retry` allows it.
original_restart_times = Job.restart_times.fget


def restart_times(job):
    """Return how often a job may be retried: 0 if its rule is not a stage or `Attempts.should_retry` is False."""
    stage = job.rule.name
    retry = stage in STAGES and ATTEMPTS.should_retry(
        stage, job_name(job.wildcards), job.attempt
    )
    return original_restart_times(job) if retry else 0


if workflow.is_main_process:
    Job.restart_times = property(restart_times)


def submitted_before(job):
    """Return the id of a cluster job that an earlier call submitted and that is still in the scheduler's queue, or None.

    The status command of the executor prints `running` for pending and running jobs. The Slurm executor has no such
    command, so the function returns None. Snakemake forgets the id when the job starts; from then on the job's note
    names its process.
    """
    command = getattr(workflow.executor_settings, "status_cmd", None)
    for number in workflow.persistence.external_jobids(job) if command else ():
        answer = command_output("sh", "-c", f"{command} {shlex.quote(number)}")
        if answer and answer.strip() == "running":
            return number
    return None


def refuse_running_jobs():
    """Raise WorkflowError if a job of this call already runs or waits in a queue, as after a kill of Snakemake."""
    job_ids = {
        (job.rule.name, job_name(job.wildcards)): submitted_before(job)
        for job in workflow.dag.needrun_jobs()
        if job.rule.name in STAGES
    }
    if busy := already_running(job_ids, STALENESS.folder, ROOT):
        raise WorkflowError(busy)


def draw_jobs():
    """Return the jobs of this call that render figures and tables."""
    rules = {job.rule.name for job in workflow.dag.jobs}
    return [job for name, job in PLAN["draw"].items() if f"draw_{name}" in rules]


def track_after_training():
    """Track the runs in MLflow after a call that trains or loads models but does not include the rule `track`."""
    rules_of_call = {job.rule.name for job in workflow.dag.jobs}
    untracked = "track" not in rules_of_call and rules_of_call & {*MAKING}
    if PLAN["tracking_uri"] and untracked:
        shell("python -m formerlab track")


def raise_for_failed_figures():
    """Raise WorkflowError if figures or tables of this call failed."""
    if failed := [name for job in draw_jobs() for name in failed_figures(job)]:
        problem = f"{len(failed)} of the figures and tables could not be rendered ({some(failed)})"
        remedy = "the same command renders them again"
        raise WorkflowError(f"{problem}: python -m formerlab status says why; {remedy}")


# The numbers of received signals (SIGINT and SIGHUP). Snakemake itself handles SIGTERM, and waits for running jobs.
SIGNALS = []


def interrupt(number, frame):
    """Record the signal, and end Snakemake as Ctrl-C does."""
    SIGNALS.append(number)
    raise KeyboardInterrupt


def after_a_failure():
    """Render the figures and tables of this call whose input metrics exist, and list failed jobs.

    After a signal, only print a message.
    """
    if SIGNALS or workflow.scheduler._user_kill:
        print(SAFE, file=sys.stderr)
        return
    names = [name for job in draw_jobs() for name in job["entries"]]
    shell("python -m formerlab rescue --only {names:q} || true")
