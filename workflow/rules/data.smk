# Text to token streams, once per data set.


rule data:
    input:
        tokenizer,
    output:
        manifest=f"{RESULTS}/data/{{name}}/manifest.json",
    log:
        f"{LOGS}/data/{{name}}.log",
    threads: max(2, PLAN["threads"])
    resources:
        mem_mb=lambda wildcards, attempt: grown(2 * PLAN["memory_mb"], attempt),
        runtime=PLAN["runtime_minutes"],
    params:
        version=lambda wildcards: PLAN["data"][wildcards.name]["version"],
    shell:
        "FORMERLAB_LOG={log} python -m formerlab data {wildcards.name} --processes {threads} 2>&1 | tee -i {log}"
