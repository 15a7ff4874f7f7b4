#!/usr/bin/env bash
# Use a machine with a GPU for a given time, unattended: measure, train; pack what came out.
#
#   scripts/gpu_queue.sh SECONDS OUT [SCALE]     (SCALE: workstation unless given)
#
# 1. What the machine lacks comes from the folder CARRIED (default: carried), where there is one: packages from its
#    wheels, and what its *.tar and *.tar.gz hold, from the root of the checkout on: prepared data sets
#    (results/live/SCALE/data) and what an earlier call packed. torch is the machine's own. To fill it, elsewhere:
#      pip download --no-deps --only-binary=:all: --python-version 3.12 --dest carried -r <(grep -vE '^(torch|triton|nvidia)' requirements.lock)
#    Beside torch 2.11, transformers, pandas and numba it takes babel, pydantic, pydantic-core, annotated-types,
#    typing-inspection and filelock alone, and lm-eval with what that needs for suites; several GPUs need torch 2.13.
#    A package that is missing still is named before anything runs.
# 2. What a GPU is wanted for (benchmarks/gpu.py): tests of kernels, ceilings, kernels, steps, decoding and failures, in
#    PROGRAMME_S seconds. It is not done again where OUT has its lines already.
# 3. In the time that is left, the jobs that `python -m formerlab plan --shell` says are missing: timings first, then the first seed of every
#    study, each run with its measurements, before the second of any. Training stops itself, checkpointed, before the
#    time is up, and the next call goes on with it.
# Into the folder OUT go few files:
#   rows.tar.gz     every row, record and sidecar of finished jobs (no weights)
#   resume-*.tar    checkpoints of unfinished runs and weights that other missing jobs need, in parts of at most PART_MB
#   gpu.txt         a line for every number of the programme, as soon as it is measured
#   gpu.log         its errors; tests.log has what the tests of the kernels said
#   log             what was run, how long it took, how it ended
# To go on elsewhere, put the first two into CARRIED.
set -uo pipefail

budget=${1:?usage: scripts/gpu_queue.sh SECONDS OUT [SCALE]}
out=${2:?usage: scripts/gpu_queue.sh SECONDS OUT [SCALE]}
scale=${3:-workstation}
margin=${MARGIN_S:-60}    # seconds kept for packing
part_mb=${PART_MB:-15}    # largest part of resume-*.tar, MB
programme_s=${PROGRAMME_S:-560}
carried=${CARRIED:-carried}
python=${PYTHON:-python3}
results=results/live/$scale
started=$SECONDS
mkdir -p "$out"

note() { printf '%6ds  %s\n' "$((SECONDS - started))" "$*" | tee -a "$out/log"; }
left() { echo $((budget - margin - (SECONDS - started))); }

# Run a command until the deadline at most (seconds from the start).
until_second() {
    local rest=$(($1 - (SECONDS - started)))
    ((rest > 0)) || return 124
    timeout --signal=TERM --kill-after=30 "$rest" "${@:2}" </dev/null
}

unpack() {
    [ -d "$carried" ] || return 0
    local file wheels=()
    for file in "$carried"/*.tar "$carried"/*.tar.gz; do [ ! -e "$file" ] || tar xf "$file"; done
    for file in "$carried"/*.whl; do [ ! -e "$file" ] || wheels+=("$file"); done
    if ((${#wheels[@]})); then
        "$python" -m pip install --quiet --no-index --no-deps --upgrade --target .carried "${wheels[@]}" || exit $?
        export PYTHONPATH="$PWD/.carried:$PYTHONPATH"
    fi
    note "unpacked $carried: ${#wheels[@]} wheels"
}

pack() {
    [ -d "$results" ] || return 0
    find "$results" -type f \( -name '*.csv' -o -name '*.json' -o -name '*.yaml' \) ! -path "$results/data/*" -print0 |
        tar czf "$out/rows.tar.gz" --null -T -
    rm -f "$out"/resume-*.tar
    # A part holds as many files as fit; a file that is larger than a part travels in one of its own.
    find "$results" -type f \( -name '*.pt' -o -name '*.safetensors' \) -printf '%s %p\n' | sort -n |
        awk -v limit="$((part_mb * 1000000))" '{ if (!part || size + $1 > limit) { part++; size = 0 } size += $1; print part, substr($0, index($0, $2)) }' |
        while read -r part path; do tar rf "$out/resume-$part.tar" "$path"; done
    note "packed: $(du -sh "$out" | cut -f1) in $out"
}

measure() {
    [ ! -e "$out/gpu.txt" ] || return 0
    local seconds=$(($(left) < programme_s ? $(left) : programme_s))
    "$python" benchmarks/gpu.py --seconds "$seconds" --out "$out" </dev/null
    note "the programme ended with status $?; every line is in gpu.txt"
}

# The stages that need a model: timings of studies, then seed by seed what is trained already and lacks a measurement,
# and each other run followed by its measurements.
by_worth() {
    grep '^python -m formerlab ' | grep -vE '^python -m formerlab (data|exact|draw|claims|runs|track)( |$)' |
        awk '{ seed = match($5, /seed[0-9]+$/) ? substr($5, RSTART + 4) : -1; if ($4 ~ /^(train|load)$/) place[$5] = NR; print seed, place[$5] + 0, NR, $4, $5 }' |
        sort -n -k1,1 -k2,2 -k3,3 | cut -d ' ' -f 4,5
}

# Without these no item and no job starts.
complete() {
    local lacking
    lacking=$("$python" -c 'import importlib.util as u; print(*(n for n in "torch numpy pydantic annotated_types typing_inspection babel jaxtyping psutil filelock tqdm yaml tabulate safetensors tokenizers pytest hypothesis".split() if u.find_spec(n) is None))') || exit $?
    [ -z "$lacking" ] || { note "this Python lacks $lacking: put wheels of them into $carried (top of this script)"; exit 2; }
}

trap 'pack; exit 143' TERM INT
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
unpack
complete
measure
if (($(left) <= 0)); then note "out of time before the jobs"; pack; exit 0; fi
plan=$("$python" -m formerlab plan --scale "$scale" --shell) || exit $?
eval "$(grep '^export ' <<<"$plan")" # FORMERLAB_PLAN, quoted, and OMP_NUM_THREADS
note "scale $scale, $(grep -c '^python' <<<"$plan") jobs missing, budget ${budget}s"

by_worth <<<"$plan" | while read -r stage id; do
    if (($(left) <= 0)); then note "out of time before $stage $id"; break; fi
    options=()
    [ "$stage" = train ] && options=(--time-limit "$(left)" --margin 10)
    until_second "$((budget - margin + 15))" "$python" -m formerlab "$stage" "$id" "${options[@]}"
    note "$stage $id ended with status $?"
done
pack
