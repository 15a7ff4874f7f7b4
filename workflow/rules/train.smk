# One training run, or a released model. Both leave files of the same names.


rule load:
    input:
        reading("load"),
    output:
        multiext(f"{RESULTS}/{{id}}/", *STAGES["load"].written),
    log:
        f"{LOGS}/load/{{id}}.log",
    wildcard_constraints:
        id=one_of(PLAN["load"]),
    priority: 1000000
    threads: PLAN["threads"]
    resources:
        mem_mb=memory("load", common_memory),
        runtime=minutes("load"),
        gpu=ON_A_GPU,
    shell:
        "FORMERLAB_LOG={log:q} OMP_NUM_THREADS={threads} "
        "python -m formerlab load {wildcards.id} 2>&1 | keep {log:q}"


# One training run. Its checkpoint lies beside its outputs, undeclared, so that a failed or stopped job goes on with it.


rule train:
    input:
        reading("train"),
    output:
        multiext(f"{RESULTS}/{{id}}/", *STAGES["train"].written),
    log:
        f"{LOGS}/train/{{id}}.log",
    wildcard_constraints:
        id=one_of(PLAN["train"]),
    priority: lambda wildcards: PLAN["train"][wildcards.id]["priority"]
    threads: lambda wildcards: PLAN["train"][wildcards.id]["threads"] * on_a_node(wildcards)
    resources:
        mem_mb=memory("train", training_memory),
        runtime=minutes("train"),
        gpu=gpus,
        nodes=nodes,
        tasks=tasks,
        mpi=launcher,
        slurm_extra=spread,
    shell:
        "FORMERLAB_LOG={log:q} OMP_NUM_THREADS={threads} "
        "python -m formerlab train {wildcards.id} "
        f"{TIME_LIMIT}"
        "2>&1 | keep {log:q}"
