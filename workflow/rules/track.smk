# All finished runs into MLflow: one writer, and a server that is away fails nothing. How often a sync has failed so far is
# a parameter of the rule, so one that failed is done again by the next call.

from formerlab.plan.judge import failed_syncs


rule track:
    input:
        records(*MAKING, *MEASURED),
        f"{FIGURES}/claims.csv",
        [file for job in PLAN["draw"].values() for file in job["outputs"]],
    output:
        f"{RESULTS}/mlflow.json",
    log:
        f"{LOGS}/track.log",
    localrule: True
    params:
        uri=PLAN["tracking_uri"],
        failures=failed_syncs(Path(RESULTS)),
        jobs=PLAN["jobs"],
    shell:
        "FORMERLAB_LOG={log:q} python -m formerlab track --failures {params.failures} 2>&1 | keep {log:q}"
