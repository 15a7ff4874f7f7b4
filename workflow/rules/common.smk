# The rules' questions to the plan and to the staleness.

import re
import shlex

from snakemake.dag import DAG
from snakemake.jobs import Job

from formerlab.errors import some
from formerlab.plan.attempts import Attempts, command_output, already_running
from formerlab.report.drawings import failure_of

ON_A_GPU = 1 if PLAN["device"] == "cuda" else 0
STALENESS = Staleness(PLAN)
ATTEMPTS = Attempts(STALENESS.folder)
# Within a cluster job nothing is judged: it was submitted to run.
STALE = STALENESS.stale() if workflow.is_main_process else {}

# A cluster ends a job at its runtime. Training stops before that, and the resubmitted job continues it. The margin
# includes the start of the job.
TIME_LIMIT = (
    ""
    if workflow.is_main_process
    else "--time-limit $(({resources.runtime} * 60)) --margin 60 "
)


def failed_drawings(job):
    """Return the notes of the figures and tables of a job that could not be drawn, by name."""
    notes = {name: failure_of(Path(FIGURES), name) for name in job["drawings"]}
    return {name: note for name, note in notes.items() if note.exists()}


FAILURES = [
    note for job in PLAN["draw"].values() for note in failed_drawings(job).values()
]
STALE_LIST = None
if workflow.is_main_process and (STALE or FAILURES):
    STALE_LIST = STALENESS.write_stale(ROOT / ".formerlab/stale", FAILURES)


def name_of(wildcards):
    """Return the name of a job within its stage: a run, a study, a data set."""
    return str(wildcards[0]) if len(wildcards) else CLAIMS


def one_of(units):
    """Return a pattern for the names of some runs or studies, and for nothing else."""
    return "|".join(map(re.escape, units)) or "(?!)"


def records(*stages):
    """Return the records of all jobs of some stages, which are done for runs or for studies."""
    return [
        f"{RESULTS}/{unit}/{STAGES[stage].record}"
        for stage in stages
        for unit in PLAN[stage]
    ]


def reading(stage, *functions):
    """Return a function that gives the inputs of a stage's job, chosen so that Snakemake runs the jobs that the judge
    names: the records of the jobs before it, and what `functions` add.

    What is stale also reads the list of all that is, which is younger: so it runs again, whoever made it. What is
    current does not run for the times of files, which a copy changes. Anything else is missing, and runs.
    """

    def files(wildcards):
        job = (stage, name_of(wildcards))
        before = [
            STALENESS.record(*base).relative_to(RESULTS)
            for base in STALENESS.dependencies(*job)
        ]
        added = [file for function in functions for file in function(wildcards)]
        found = [*(f"{RESULTS}/{record}" for record in before), *added]
        if job in STALE:
            return [*found, STALE_LIST]
        current = workflow.is_main_process and STALENESS.check(*job).current
        return [ancient(file) for file in found] if current else found

    return files


def weights(wildcards):
    """Return the weights of a finished run; those of a released model lie elsewhere."""
    trained = wildcards.id not in PLAN["load"]
    return [f"{RESULTS}/{wildcards.id}/weights.safetensors"] if trained else []


def all_cores(wildcards):
    """Return all cores, so that no other job runs; a cluster is asked for a node instead."""
    return workflow.cores if workflow.local_exec else PLAN["threads"]


def timing_memory(stage):
    """Return a function that gives the host memory of a job which times the runs of a study."""

    def needed(wildcards):
        held = PLAN[stage][wildcards.study]["memory_bytes"]
        return PLAN["memory_mb"] * 2 + held // 2**20

    return needed


def memory(stage, first):
    """Return a function that gives the host memory of a job in MiB: half of `first` more for every time that it was
    killed for memory, up to three times."""

    def requested(wildcards, attempt):
        kills = 0
        if workflow.is_main_process:
            kills = ATTEMPTS.memory_kills(stage, name_of(wildcards), attempt)
        return int(first(wildcards) * min(3, 1 + 0.5 * kills))

    return requested


def common_memory(wildcards):
    """Return the host memory of a job: the scale's own, and the weights of a released model."""
    job = PLAN["load"].get(wildcards.get("id"))
    held = job["cost"]["memory_bytes"] // 2**20 if job else 0
    return 2 * PLAN["memory_mb"] + held


def training_memory(wildcards):
    """Return the host memory that a run needs."""
    cost = PLAN["train"][wildcards.id]["cost"]
    # On a GPU every process builds the weights on the host, and all read one mapped checkpoint (weights, moments).
    need = (
        cost["memory_bytes"] * on_a_node(wildcards)
        if PLAN["device"] == "cpu"
        else 4 * (3 + on_a_node(wildcards)) * cost["parameters"]
    )
    loader = PLAN["train"][wildcards.id]["loader_bytes"] * on_a_node(wildcards)
    return PLAN["memory_mb"] + (1.5 * need + loader) / 2**20


def on_a_node(wildcards):
    """Return the processes of a run on each of its machines."""
    job = PLAN["train"][wildcards.id]
    return job["gpus"] // job["nodes"]


def gpus(wildcards):
    """Return the GPUs that a run asks for on one machine; on several, `spread` asks for them."""
    job = PLAN["train"][wildcards.id]
    return job["gpus"] if PLAN["device"] == "cuda" and job["nodes"] == 1 else 0


def nodes(wildcards):
    """Return the number of machines of a run. It is stated for one machine too: Slurm may otherwise spread the GPUs of
    a job over several machines, and the run starts on the first alone.
    """
    return PLAN["train"][wildcards.id]["nodes"]


def tasks(wildcards):
    """Return the number of Slurm tasks of a run on several machines: torchrun starts in one on each machine."""
    return nodes(wildcards) if nodes(wildcards) > 1 else None


def launcher(wildcards):
    """Return the option with which the executor leaves the step of a job on several machines to its command."""
    return "srun" if tasks(wildcards) else None


def spread(wildcards):
    """Return how many GPUs are asked for on each of several machines."""
    several = tasks(wildcards) and PLAN["device"] == "cuda"
    return f"--gpus-per-node={on_a_node(wildcards)}" if several else None


def minutes(stage):
    """Return a function that gives twice the predicted time of a job, at least 10 minutes and at most the limit of one
    job; without a prediction it is that limit."""

    def requested(wildcards):
        cost = PLAN[stage][wildcards.id].get("cost")
        predicted = 10 + 120 * cost["hours"] if cost else PLAN["runtime_minutes"]
        return min(PLAN["runtime_minutes"], int(predicted))

    return requested


# Every job replaces its files one by one, whole, and a stage refuses to work beside another process that does the same
# work. Snakemake would delete them before the job starts and after it fails, even those of that other process.
async def keep_files(job, *arguments):
    """Delete nothing, in place of the methods of Snakemake's jobs that delete files."""


Job.remove_existing_output = Job.cleanup = keep_files


# `--until train` would end at every run, even at one that others grow from: Snakemake then finds jobs left that it
# may not start, and reports a bug of its own. So it ends at the last run of a chain.
ends_at = DAG.in_until


def ends_at_last(dag, job):
    """Return whether `--until` ends at a job, which it does not where a job of the same rule reads what this one makes."""
    return ends_at(dag, job) and not any(
        reader.rule is job.rule for reader in dag.depending[job]
    )


DAG.in_until = ends_at_last


# Snakemake tries every failed job again, as often as `retries` says; this is the only way to stop it where each
# attempt would end the same way. Jobs that are not stages run here, where all attempts are alike.
retries_allowed = Job.restart_times.fget


def retries_left(job):
    """Return how often a job may be tried again; 0 where that is in vain."""
    stage = job.rule.name
    hopeful = stage in STAGES and ATTEMPTS.should_retry(
        stage, name_of(job.wildcards), job.attempt
    )
    return retries_allowed(job) if hopeful else 0


if workflow.is_main_process:
    Job.restart_times = property(retries_left)


def submitted_before(job):
    """Return the id of a job that an earlier call submitted and that waits by the executor's status command, or None.

    Snakemake forgets the id when the job starts; its note then names the process. The executor for Slurm has no such
    command."""
    command = getattr(workflow.executor_settings, "status_cmd", None)
    for number in workflow.persistence.external_jobids(job) if command else ():
        answer = command_output("sh", "-c", f"{command} {shlex.quote(number)}")
        if answer and answer.strip() == "running":
            return number
    return None


def start_nothing_twice():
    """Stop where another process works on a job of this call, as after a Snakemake that was killed."""
    stages = {
        (job.rule.name, name_of(job.wildcards)): submitted_before(job)
        for job in workflow.dag.needrun_jobs()
        if job.rule.name in STAGES
    }
    if busy := already_running(stages, STALENESS.folder, ROOT):
        raise WorkflowError(busy)


def drawn_here():
    """Return the jobs of this call that draw."""
    rules = {job.rule.name for job in workflow.dag.jobs}
    return [job for name, job in PLAN["draw"].items() if f"draw_{name}" in rules]


def track_if_left_out():
    """Bring the runs into MLflow after a call that may have trained and leaves out the rule `track`, as one of a study
    or of a figure does."""
    rules_of_call = {job.rule.name for job in workflow.dag.jobs}
    left_out = "track" not in rules_of_call and rules_of_call & {*MAKING}
    if PLAN["tracking_uri"] and left_out:
        shell("python -m formerlab track")


def count_failed_drawings():
    """Stop with the number of figures and tables of this call that could not be drawn, if there are any."""
    if failed := [name for job in drawn_here() for name in failed_drawings(job)]:
        what = f"{len(failed)} of the figures and tables could not be drawn ({some(failed)})"
        again = "the same command draws them again"
        raise WorkflowError(f"{what}: python -m formerlab status says why; {again}")


# SIGINT and SIGHUP; Snakemake itself notes SIGTERM, after which it waits for the jobs that run.
SIGNALS = []


def interrupt(number, frame):
    """End Snakemake as Ctrl-C does, and note the signal."""
    SIGNALS.append(number)
    raise KeyboardInterrupt


def after_a_failure():
    """Draw and list what there is of this call's products; after a signal, end at once."""
    if SIGNALS or workflow.scheduler._user_kill:
        print(SAFE, file=sys.stderr)
        return
    names = [name for job in drawn_here() for name in job["drawings"]]
    shell("python -m formerlab rescue --only {names:q} || true")
