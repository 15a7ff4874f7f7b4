# Named targets.


rule data_only:
    input:
        [f"{job['out']}/manifest.json" for job in PLAN["data"].values()],


rule plan:
    log:
        f"{LOGS}/plan.log",
    localrule: True
    shell:
        "python -m formerlab plan 2>&1 | tee {log:q}"


# One target per study: `snakemake --cores 2 denseformer`.
for study in PLAN["studies"]:

    rule:
        name:
            study
        input:
            [
                file
                for job in PLAN["draw"].values()
                if job["study"] == study
                for file in job["outputs"]
            ],
            [
                file
                for file in record_files(*MAKING, *MEASURED, *TIMED)
                if file.startswith(f"{RESULTS}/{study}/")
            ],
