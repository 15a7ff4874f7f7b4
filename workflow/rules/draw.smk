# Rows to figures and tables: one small rule each, which runs where Snakemake runs and never trains anything.

REPORTED = {"png": "picture", "html": "table", "csv": "its numbers (CSV file)"}

for name, job in PLAN["draw"].items():

    rule:
        name:
            f"draw_{name}"
        input:
            job["inputs"],
        output:
            [
                (
                    report(
                        file,
                        caption=os.path.abspath(f"{FIGURES}/{name}.rst"),
                        category=PLAN["studies"][job["study"]]["title"],
                        labels={
                            "what": name,
                            "as": REPORTED[file.rpartition(".")[2]],
                        },
                    )
                    if file.rpartition(".")[2] in REPORTED
                    else file
                )
                for file in job["outputs"]
            ],
        log:
            f"{LOGS}/draw/{name}.log",
        localrule: True
        params:
            code=job["code"],
            name=name,
            names=job["names"],
            runs=job["runs"],
            command=f"python -m formerlab draw {name} --scale {PLAN['scale']}",
        shell:
            "FORMERLAB_LOG={log} python -m formerlab draw {params.name} > {log} 2>&1 || (cat {log}; exit 1)"


# Every finished run with what it cost and what it came from.
rule runs:
    input:
        expand(f"{RESULTS}/{{id}}/run.json", id=made_runs(PLAN)),
    output:
        report(
            f"{FIGURES}/runs.html",
            caption="../report/runs.rst",
            category="Provenance and cost",
            labels={"what": "runs", "as": "table"},
        ),
        csv=f"{FIGURES}/runs.csv",
    log:
        f"{LOGS}/runs.log",
    localrule: True
    params:
        code=PLAN["ledger"],
        jobs=PLAN["jobs"],
    shell:
        "FORMERLAB_LOG={log} python -m formerlab runs --out $(dirname {output.csv}) > {log} 2>&1 || (cat {log}; exit 1)"
