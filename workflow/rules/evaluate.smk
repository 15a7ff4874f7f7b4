# What is measured on a trained model: zero-shot questions, and all cache policies in one job.


rule zeroshot:
    input:
        f"{RESULTS}/{{id}}/run.json",
        f"{RESULTS}/{{id}}/weights.safetensors",
    output:
        f"{RESULTS}/{{id}}/zeroshot.csv",
        f"{RESULTS}/{{id}}/zeroshot.json",
    log:
        f"{LOGS}/zeroshot/{{id}}.log",
    priority: 1000000  # before further training: a sweep of policies left to the end would run alone
    threads: PLAN["threads"]
    resources:
        mem_mb=PLAN["memory_mb"] * 2,
        gpu=1 if PLAN["device"] == "cuda" else 0,
    params:
        code=lambda wildcards: PLAN["zeroshot"][wildcards.id]["code"],
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab zeroshot {wildcards.id} 2>&1 | tee -i {log}"


rule prune:
    input:
        f"{RESULTS}/{{id}}/run.json",
        f"{RESULTS}/{{id}}/weights.safetensors",
    output:
        f"{RESULTS}/{{id}}/prune.csv",
        f"{RESULTS}/{{id}}/prune_questions.csv",
        f"{RESULTS}/{{id}}/prune_masks.csv",
        f"{RESULTS}/{{id}}/prune.json",
    log:
        f"{LOGS}/prune/{{id}}.log",
    priority: 1000000  # before further training: a sweep of policies left to the end would run alone
    threads: PLAN["threads"]
    resources:
        mem_mb=PLAN["memory_mb"] * 2,
        gpu=1 if PLAN["device"] == "cuda" else 0,
    params:
        code=lambda wildcards: PLAN["prune"][wildcards.id]["code"],
        sweep=lambda wildcards: PLAN["prune"][wildcards.id]["sweep"],
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab prune {wildcards.id} 2>&1 | tee -i {log}"


rule translate:
    input:
        f"{RESULTS}/{{id}}/run.json",
        f"{RESULTS}/{{id}}/weights.safetensors",
    output:
        f"{RESULTS}/{{id}}/translate.csv",
        f"{RESULTS}/{{id}}/bleu.csv",
        f"{RESULTS}/{{id}}/attention.csv",
        f"{RESULTS}/{{id}}/translations.tsv",
        f"{RESULTS}/{{id}}/translate.json",
    log:
        f"{LOGS}/translate/{{id}}.log",
    priority: 1000000
    threads: PLAN["threads"]
    resources:
        mem_mb=PLAN["memory_mb"] * 2,
        gpu=1 if PLAN["device"] == "cuda" else 0,
    params:
        code=lambda wildcards: PLAN["translate"][wildcards.id]["code"],
        settings=lambda wildcards: PLAN["translate"][wildcards.id]["settings"],
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab translate {wildcards.id} 2>&1 | tee -i {log}"


rule complexity:
    input:
        f"{RESULTS}/{{id}}/run.json",
        f"{RESULTS}/{{id}}/weights.safetensors",
    output:
        f"{RESULTS}/{{id}}/complexity.csv",
        f"{RESULTS}/{{id}}/complexity.json",
    log:
        f"{LOGS}/complexity/{{id}}.log",
    priority: 1000000
    threads: PLAN["threads"]
    resources:
        mem_mb=PLAN["memory_mb"] * 2,
        gpu=1 if PLAN["device"] == "cuda" else 0,
    params:
        code=lambda wildcards: PLAN["complexity"][wildcards.id]["code"],
        settings=lambda wildcards: PLAN["complexity"][wildcards.id]["settings"],
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab complexity {wildcards.id} 2>&1 | tee -i {log}"
