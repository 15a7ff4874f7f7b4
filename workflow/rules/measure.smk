# Measurements: one rule per measuring stage (src/formerlab/results/stages.py).

# Measurements of a finished run: questions, cache policies, translations, ...
for name, stage in MEASURED.items():

    rule:
        name:
            name
        input:
            input_function(name, weights),
        output:
            multiext(f"{RESULTS}/{{id}}/", *stage.written),
        log:
            f"{LOGS}/{name}/{{id}}.log",
        priority: 1000000  # before most training, so that no long measurement runs alone at the end
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


# Speed and decoding of the runs of a study, timed on an idle machine. A local job takes all cores of Snakemake, and a
# Slurm job an exclusive node. Other schedulers give no exclusive node (docs/cluster.md).
for name, stage in TIMED.items():

    rule:
        name:
            name
        input:
            input_function(name),
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
            # The stage sets the number of threads itself, to the number in the plan.
            "FORMERLAB_LOG={log:q} python -m formerlab {params.stage} {wildcards.study} 2>&1 | keep {log:q}"
