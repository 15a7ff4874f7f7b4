# Load a released model. Its output files have the same names as the files that training writes.


rule load:
    input:
        input_function("load"),
    output:
        multiext(f"{RESULTS}/{{id}}/", *STAGES["load"].written),
    log:
        f"{LOGS}/load/{{id}}.log",
    wildcard_constraints:
        id=names_pattern(PLAN["load"]),
    priority: 1000000
    threads: PLAN["threads"]
    resources:
        mem_mb=memory("load", common_memory),
        runtime=minutes("load"),
        gpu=ON_A_GPU,
    shell:
        "FORMERLAB_LOG={log:q} OMP_NUM_THREADS={threads} "
        "python -m formerlab load {wildcards.id} 2>&1 | keep {log:q}"


# Train a run. Its checkpoint is not a declared output, so Snakemake keeps the checkpoint for the next attempt.


rule train:
    input:
        input_function("train"),
    output:
        multiext(f"{RESULTS}/{{id}}/", *STAGES["train"].written),
    log:
        f"{LOGS}/train/{{id}}.log",
    wildcard_constraints:
        id=names_pattern(PLAN["train"]),
    priority: lambda wildcards: PLAN["train"][wildcards.id]["priority"]
    threads: lambda wildcards: PLAN["train"][wildcards.id]["threads"] * processes_per_node(wildcards)
    resources:
        mem_mb=memory("train", training_memory),
        runtime=minutes("train"),
        gpu=gpus,
        nodes=nodes,
        tasks=tasks,
        mpi=launcher,
        slurm_extra=slurm_gpus,
    shell:
        "FORMERLAB_LOG={log:q} OMP_NUM_THREADS={threads} "
        "python -m formerlab train {wildcards.id} "
        f"{TIME_LIMIT}"
        "2>&1 | keep {log:q}"
