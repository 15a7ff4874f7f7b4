# Prepare each data set once: token streams, sentence pairs or images.


rule data:
    input:
        input_function("data"),
    output:
        manifest=f"{RESULTS}/data/{{name}}/manifest.json",
    log:
        f"{LOGS}/data/{{name}}.log",
    threads: max(2, PLAN["threads"])
    resources:
        mem_mb=memory("data", common_memory),
        runtime=PLAN["runtime_minutes"],
    shell:
        "FORMERLAB_LOG={log:q} RAYON_NUM_THREADS={threads} python -m formerlab data {wildcards.name} 2>&1 | keep {log:q}"
