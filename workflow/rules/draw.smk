# Render figures and tables from the metrics tables, in local jobs. A job is named after its first figure or table. Every
# file of a figure or table is a target that can be requested by its path.

for name, job in PLAN["draw"].items():

    rule:
        name:
            f"draw_{name}"
        input:
            job["inputs"],
            [STALE_LIST] if STALE_LIST and failed_figures(job) else [],
        output:
            job["outputs"],
        log:
            f"{LOGS}/draw/{name}.log",
        localrule: True
        params:
            names=list(job["entries"]),
            entries=job["entries"],
        shell:
            "FORMERLAB_LOG={log:q} python -m formerlab draw --go-on {params.names:q} 2>&1 | keep {log:q}"


# List every finished run with its cost and origin.
rule runs:
    input:
        expand(f"{RESULTS}/{{id}}/run.json", id=run_jobs(PLAN)),
    output:
        f"{FIGURES}/runs.html",
        csv=f"{FIGURES}/runs.csv",
    log:
        f"{LOGS}/runs.log",
    localrule: True
    params:
        code=PLAN["ledger"],  # the hash of the code of the run table
        jobs=PLAN["jobs"],
    shell:
        'FORMERLAB_LOG={log:q} python -m formerlab runs --out "$(dirname {output.csv:q})" 2>&1 | keep {log:q}'
