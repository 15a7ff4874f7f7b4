# Write all runs to MLflow. If the server cannot be reached, the job still succeeds, and increments the number of failed
# syncs. The number is a parameter of the rule, so the next call repeats the sync.

from formerlab.plan.staleness import failed_syncs


rule track:
    input:
        record_files(*MAKING, *MEASURED),
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
