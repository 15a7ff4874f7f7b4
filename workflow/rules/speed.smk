# How fast the runs of a study are, measured alone on the machine: the job takes all cores that Snakemake was given, so
# it runs beside no other, and it needs nothing, so it comes first of all. On a cluster it has a node to itself.


rule speed:
    output:
        f"{RESULTS}/{{study}}/speed.csv",
        f"{RESULTS}/{{study}}/speed.json",
    log:
        f"{LOGS}/speed/{{study}}.log",
    priority: 100000000  # first, or it would wait for the last of all runs
    threads: lambda wildcards: workflow.cores if workflow.local_exec else PLAN["threads"]
    resources:
        mem_mb=lambda wildcards: PLAN["memory_mb"] * 2
        + PLAN["speed"][wildcards.study]["memory_bytes"] // 2**20,
        gpu=1 if PLAN["device"] == "cuda" else 0,
        slurm_extra="--exclusive",
    params:
        code=lambda wildcards: PLAN["speed"][wildcards.study]["code"],
        configuration=lambda wildcards: PLAN["speed"][wildcards.study]["configuration"],
    shell:
        # The threads that are measured are those of any other job, and the stage asks the plan for them.
        "FORMERLAB_LOG={log} python -m formerlab speed {wildcards.study} 2>&1 | tee -i {log}"
