# What the rules ask the plan.


def parent(wildcards):
    """Return the record of the run that this one grows from, if any."""
    init = PLAN["train"][wildcards.id]["init"]
    return [f"{RESULTS}/{init}/run.json"] if init else []


def measured(wildcards):
    """Return the times of the study's runs, where the run trains for as long as another."""
    job = PLAN["train"][wildcards.id]
    return [f"{RESULTS}/{job['study']}/speed.json"] if job["equal_time"] else []


def all_cores(wildcards):
    """Return as many cores as leave none to another job; a cluster is asked for a node instead."""
    return workflow.cores if workflow.local_exec else PLAN["threads"]


def timed(stage, value):
    """Return a function that gives what a job of a stage which times a study says."""

    def said(wildcards):
        return value(PLAN[stage][wildcards.study])

    return said


def manifest(wildcards):
    """Return the data set that the run reads."""
    return f"{RESULTS}/data/{PLAN['train'][wildcards.id]['data']}/manifest.json"


def tokenizer(wildcards):
    """Return the data set whose tokenizer this one takes, if any."""
    above = PLAN["data"][wildcards.name]["tokenizer"]
    return [f"{RESULTS}/data/{above}/manifest.json"] if above else []


def mebibytes(wildcards, attempt):
    """Return the host memory that a run needs, half of it more at every attempt, up to three times."""
    cost = PLAN["train"][wildcards.id]["cost"]
    # On a GPU the host holds a copy of weights and moments while a checkpoint is written.
    need = (
        cost["memory_bytes"] if PLAN["device"] == "cpu" else 4 * 4 * cost["parameters"]
    )
    return grown(PLAN["memory_mb"] + 1.5 * need / 2**20, attempt)


def grown(first, attempt):
    """Return a request for memory at its n-th attempt: a job killed for memory asks for more, but not without end."""
    return int(first * min(3, 1 + 0.5 * (attempt - 1)))


def gpus(wildcards):
    """Return the GPUs that a run asks for."""
    return PLAN["train"][wildcards.id]["gpus"] if PLAN["device"] == "cuda" else 0


def minutes(stage):
    """Return a function that gives twice the predicted time of a job, at least 10 minutes, as far as one job may run."""

    def requested(wildcards):
        return min(
            PLAN["runtime_minutes"],
            int(10 + 120 * PLAN[stage][wildcards.id]["cost"]["hours"]),
        )

    return requested
