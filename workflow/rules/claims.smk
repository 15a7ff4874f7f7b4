# The registered claims. Exact claims are computed without training. All other claims are evaluated on the metrics of
# finished runs.


rule exact:
    input:
        input_function("exact"),
    output:
        expand(f"{RESULTS}/{{file}}", file=STAGES["exact"].written),
    log:
        f"{LOGS}/exact.log",
    threads: 1
    resources:
        mem_mb=memory("exact", lambda wildcards: PLAN["memory_mb"]),
    shell:
        "FORMERLAB_LOG={log:q} OMP_NUM_THREADS={threads} python -m formerlab exact 2>&1 | keep {log:q}"


rule claims:
    input:
        f"{RESULTS}/exact.csv",
        record_files(*MAKING, *MEASURED, *TIMED),
    output:
        f"{FIGURES}/claims.html",
        csv=f"{FIGURES}/claims.csv",
    log:
        f"{LOGS}/claims.log",
    localrule: True
    params:
        code=PLAN["claims"]["code"],
        arms=PLAN["claims"]["arms"],
        jobs=PLAN["jobs"],
    shell:
        'FORMERLAB_LOG={log:q} python -m formerlab claims --out "$(dirname {output.csv:q})" 2>&1 | keep {log:q}'
