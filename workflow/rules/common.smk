# What the rules ask the plan.


def parent(wildcards):
    """Return the record of the run that this one grows from, if any."""
    init = PLAN["train"][wildcards.id]["init"]
    return [f"{RESULTS}/{init}/run.json"] if init else []


def measured(wildcards):
    """Return the times of the study's runs, where the run trains for as long as another."""
    job = PLAN["train"][wildcards.id]
    return [f"{RESULTS}/{job['study']}/speed.json"] if job["equal_time"] else []


def manifest(wildcards):
    """Return the data set that the run reads."""
    return f"{RESULTS}/data/{PLAN['train'][wildcards.id]['data']}/manifest.json"


def tokenizer(wildcards):
    """Return the data set whose tokenizer this one takes, if any."""
    above = PLAN["data"][wildcards.name]["tokenizer"]
    return [f"{RESULTS}/data/{above}/manifest.json"] if above else []


def mebibytes(wildcards, attempt):
    """Return the memory that a run needs, more at every attempt."""
    need = PLAN["train"][wildcards.id]["cost"]["memory_bytes"] / 2**20
    return int(PLAN["memory_mb"] + 1.5 * need * attempt)


def minutes(wildcards):
    """Return twice the predicted time, at least 10 minutes."""
    return int(10 + 120 * PLAN["train"][wildcards.id]["cost"]["hours"])
