# One training run. Its checkpoint lies beside its outputs, undeclared, so that a failed or stopped job goes on with it.


def parent(wildcards):
    """Return the record of the run that this one grows from, if any."""
    init = PLAN["train"][wildcards.id]["init"]
    return [f"{RESULTS}/{init}/run.json"] if init else []


def manifest(wildcards):
    """Return the data set that the run reads."""
    return f"{RESULTS}/data/{PLAN['train'][wildcards.id]['data']}/manifest.json"


def mebibytes(wildcards, attempt):
    """Return the memory that a run needs, more at every attempt."""
    need = PLAN["train"][wildcards.id]["cost"]["memory_bytes"] / 2**20
    return int(PLAN["memory_mb"] + 1.5 * need * attempt)


def minutes(wildcards):
    """Return twice the predicted time, at least 10 minutes."""
    return int(10 + 120 * PLAN["train"][wildcards.id]["cost"]["hours"])


rule train:
    input:
        parent,
        manifest,
    output:
        multiext(
            f"{RESULTS}/{{id}}/",
            "run.json",
            "run.yaml",
            "train.csv",
            "timing.csv",
            "eval.csv",
            "test.csv",
            "depth.csv",
            "weights.safetensors",
        ),
    params:
        spec=lambda wildcards: PLAN["train"][wildcards.id]["spec_hash"],
        code=lambda wildcards: PLAN["train"][wildcards.id]["code"],
        data=lambda wildcards: PLAN["train"][wildcards.id]["data_version"],
        optimizer=lambda wildcards: PLAN["train"][wildcards.id]["keep_optimizer"],
    log:
        f"{LOGS}/train/{{id}}.log",
    priority: lambda wildcards: PLAN["train"][wildcards.id]["priority"]
    threads: PLAN["threads"]
    resources:
        mem_mb=mebibytes,
        runtime=minutes,
        gpu=1 if PLAN["device"] == "cuda" else 0,
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab train {wildcards.id} --on-mismatch restart "
        # A cluster ends a job at its runtime; training stops itself before that, and the resubmitted job goes on.
        "${{SLURM_JOB_ID:+--time-limit $(({resources.runtime} * 60))}} 2>&1 | tee -i {log}"
