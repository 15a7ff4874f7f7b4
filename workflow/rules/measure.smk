# Measurements: one rule for each measuring stage (src/formerlab/results/stages.py).

# Measurements of a finished run: questions, cache policies, translations, ...
for name, stage in MEASURED.items():

    rule:
        name:
            name
        input:
            reading(name, weights),
        output:
            multiext(f"{RESULTS}/{{id}}/", *stage.written),
        log:
            f"{LOGS}/{name}/{{id}}.log",
        priority: 1000000  # before training, because a long measurement at the end would run alone
        threads: PLAN["threads"]
        resources:
            mem_mb=memory(name, common_memory),
            runtime=minutes(name),
            gpu=ON_A_GPU,
        params:
            stage=name,
        shell:
            "FORMERLAB_LOG={log:q} OMP_NUM_THREADS={threads} "
            "python -m formerlab {params.stage} {wildcards.id} 2>&1 | keep {log:q}"


# Speed and decoding of the runs of a study, timed on an idle machine: the job takes all cores of Snakemake or, on a
# cluster, an exclusive node.
for name, stage in TIMED.items():

    rule:
        name:
            name
        input:
            reading(name),
        output:
            multiext(f"{RESULTS}/{{study}}/", *stage.written),
        log:
            f"{LOGS}/{name}/{{study}}.log",
        priority: 100000000  # first
        threads: all_cores
        resources:
            mem_mb=memory(name, timing_memory(name)),
            runtime=PLAN["runtime_minutes"],
            gpu=ON_A_GPU,
            slurm_extra="--exclusive",
        params:
            stage=name,
        shell:
            # The stage sets the number of threads that the plan gives to every job.
            "FORMERLAB_LOG={log:q} python -m formerlab {params.stage} {wildcards.study} 2>&1 | keep {log:q}"
