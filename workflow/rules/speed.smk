# What is measured alone on the machine: how fast the runs of a study are, and how decoding depends on the length. Such a
# job takes all cores that Snakemake was given, so it runs beside no other, and it needs nothing, so it comes first of
# all. On a cluster it has a node to itself.

for stage in TIMED:

    rule:
        name:
            stage
        input:
            reading(stage),
        output:
            f"{RESULTS}/{{study}}/{stage}.csv",
            f"{RESULTS}/{{study}}/{stage}.json",
        log:
            f"{LOGS}/{stage}/{{study}}.log",
        priority: 100000000  # first, or it would wait for the last of all runs
        threads: all_cores
        resources:
            mem_mb=memory(
                stage,
                timed(
                    stage,
                    lambda job: PLAN["memory_mb"] * 2 + job["memory_bytes"] // 2**20,
                ),
            ),
            gpu=1 if PLAN["device"] == "cuda" else 0,
            slurm_extra="--exclusive",
        params:
            stage=stage,
        shell:
            # The threads that are measured are those of any other job, and the stage asks the plan for them.
            "FORMERLAB_LOG={log} python -m formerlab {params.stage} {wildcards.study} 2>&1 | tee -i {log}"
