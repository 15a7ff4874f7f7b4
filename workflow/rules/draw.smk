# Rows to figures and tables: one small rule each, which runs where Snakemake runs and never trains anything.

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
                        caption=f"{ROOT}/workflow/report/{name}.rst",
                        category=PLAN["studies"][job["study"]]["title"],
                        labels={"what": name, "kind": job["kind"]},
                    )
                    if file.endswith(
                        (".png", ".csv") if job["kind"] == "table" else ".png"
                    )
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
        shell:
            "FORMERLAB_LOG={log} python -m formerlab draw {params.name} > {log} 2>&1 || (cat {log}; exit 1)"
