# Measurements: a rule for each such stage of the table (src/formerlab/results/stages.py).

# Of a trained model: questions, cache policies, translations, ...
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
        priority: 1000000  # before further training: a sweep of policies left to the end would run alone
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


# Speed of the runs of a study, and of decoding by length, measured alone on the machine. Such a job takes all cores
# of Snakemake, so no other runs beside it. It has no inputs, so it comes first. On a cluster it has a node to itself.
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
        priority: 100000000  # first, else it would wait for all runs
        threads: all_cores
        resources:
            mem_mb=memory(name, timing_memory(name)),
            runtime=PLAN["runtime_minutes"],
            gpu=ON_A_GPU,
            slurm_extra="--exclusive",
        params:
            stage=name,
        shell:
            # The threads that are measured are those of any other job, and the stage asks the plan for them.
            "FORMERLAB_LOG={log:q} python -m formerlab {params.stage} {wildcards.study} 2>&1 | keep {log:q}"
