# What is measured on a trained model: zero-shot questions, all cache policies in one job, flow over depth.


rule zeroshot:
    input:
        reading("zeroshot", model),
    output:
        f"{RESULTS}/{{id}}/zeroshot.csv",
        f"{RESULTS}/{{id}}/zeroshot.json",
    log:
        f"{LOGS}/zeroshot/{{id}}.log",
    priority: 1000000  # before further training: a sweep of policies left to the end would run alone
    threads: PLAN["threads"]
    resources:
        mem_mb=memory("zeroshot", common_memory),
        runtime=minutes("zeroshot"),
        gpu=1 if PLAN["device"] == "cuda" else 0,
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab zeroshot {wildcards.id} 2>&1 | tee -i {log}"


rule prune:
    input:
        reading("prune", model),
    output:
        multiext(
            f"{RESULTS}/{{id}}/",
            "prune.csv",
            "prune_questions.csv",
            "prune_masks.csv",
            "prune_alphas.csv",
            "prune_calibrated.csv",
            "prune_pictures.csv",
            "prune_scores.csv",
            "prune_once.csv",
            "prune.json",
        ),
    log:
        f"{LOGS}/prune/{{id}}.log",
    priority: 1000000  # before further training: a sweep of policies left to the end would run alone
    threads: PLAN["threads"]
    resources:
        mem_mb=memory("prune", common_memory),
        runtime=minutes("prune"),
        gpu=1 if PLAN["device"] == "cuda" else 0,
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab prune {wildcards.id} 2>&1 | tee -i {log}"


rule flow:
    input:
        reading("flow", model),
    output:
        f"{RESULTS}/{{id}}/flow.csv",
        f"{RESULTS}/{{id}}/flow.json",
    log:
        f"{LOGS}/flow/{{id}}.log",
    threads: PLAN["threads"]
    resources:
        mem_mb=memory("flow", common_memory),
        gpu=1 if PLAN["device"] == "cuda" else 0,
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab flow {wildcards.id} 2>&1 | tee -i {log}"


rule translate:
    input:
        reading("translate", model),
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
        mem_mb=memory("translate", common_memory),
        gpu=1 if PLAN["device"] == "cuda" else 0,
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab translate {wildcards.id} 2>&1 | tee -i {log}"


rule complexity:
    input:
        reading("complexity", model),
    output:
        f"{RESULTS}/{{id}}/complexity.csv",
        f"{RESULTS}/{{id}}/complexity.json",
    log:
        f"{LOGS}/complexity/{{id}}.log",
    priority: 1000000
    threads: PLAN["threads"]
    resources:
        mem_mb=memory("complexity", common_memory),
        gpu=1 if PLAN["device"] == "cuda" else 0,
    shell:
        "FORMERLAB_LOG={log} OMP_NUM_THREADS={threads} "
        "python -m formerlab complexity {wildcards.id} 2>&1 | tee -i {log}"
