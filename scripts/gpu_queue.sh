#!/usr/bin/env bash
# Use a machine with a GPU for a given time, unattended: test the kernels, run the benchmarks, train; pack what came out.
#
#   scripts/gpu_queue.sh SECONDS OUT [SCALE]     (SCALE: workstation unless given)
#
# 1. What the machine lacks comes from the folder CARRIED (default: carried), where there is one: packages from its
#    wheels, and what its *.tar and *.tar.gz hold, from the root of the checkout on: prepared data sets
#    (results/live/SCALE/data) and what an earlier call packed. torch is the machine's own. To fill it, elsewhere:
#      pip download --no-deps --only-binary=:all: --python-version 3.12 --dest carried -r <(grep -vE '^(torch|triton|nvidia)' requirements.lock)
#    Beside torch 2.11, transformers, pandas and numba it takes babel, pydantic, pydantic-core, annotated-types,
#    typing-inspection and filelock alone, and lm-eval with what that needs for suites; several GPUs need torch 2.13.
# 2. The tests of the kernels (tests/kernels/test_on_a_gpu.py) in an eighth of the time at most, then the benchmarks in
#    twice as much, all bars in one table. They are not done again where OUT has their table already.
# 3. The jobs that `python -m formerlab plan --shell` says are missing: timings first, then the first seed of every
#    study, each run with its measurements, before the second of any. Training stops itself, checkpointed, before the
#    time is up, and the next call goes on with it.
# Into the folder OUT go few files:
#   rows.tar.gz     every row, record and sidecar of finished jobs (no weights)
#   resume-*.tar    checkpoints of unfinished runs and weights that other missing jobs need, in parts of at most PART_MB
#   tests.log       what the tests of the kernels said
#   benchmarks.md   the bars, met or missed; benchmarks.log has the whole output
#   log             what was run, how long it took, how it ended
# To go on elsewhere, put the first two into CARRIED.
set -uo pipefail

budget=${1:?usage: scripts/gpu_queue.sh SECONDS OUT [SCALE]}
out=${2:?usage: scripts/gpu_queue.sh SECONDS OUT [SCALE]}
scale=${3:-workstation}
margin=${MARGIN_S:-60}    # seconds kept for packing
part_mb=${PART_MB:-15}    # largest part of resume-*.tar, MB
rounds=${ROUNDS:-15}      # of the benchmarks
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
    [ ! -e "$out/benchmarks.md" ] || return 0
    local eighth=$((budget / 8)) device precision=float32 words status number=0 sizes=()
    # Without what pyproject.toml adds: types would be checked by a package that the machine may lack.
    until_second "$eighth" "$python" -m pytest -o addopts= -q -rs tests/kernels/test_on_a_gpu.py >"$out/tests.log" 2>&1
    note "tests of the kernels ended with status $?: $(tail -n 1 "$out/tests.log")"
    device=$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")') || device=cpu
    [ "$device" = cpu ] || { precision=bfloat16 sizes=(published_sizes.py); }
    : >"$out/benchmarks.log"
    printf '| benchmark | verdict |\n|---|---|\n' >"$out/benchmarks.part"
    for words in "pattention.py --device $device" "pruning.py --device $device --precision $precision --warps 4 8 16" "depth.py --device $device --only step --only alone" "${sizes[@]}"; do
        number=$((number + 1))
        # shellcheck disable=SC2086  # words are words
        until_second $((eighth + eighth * number / 2)) "$python" benchmarks/$words --rounds "$rounds" >"$out/benchmark" 2>>"$out/benchmarks.log"
        status=$?
        note "benchmark $words ended with status $status"
        cat "$out/benchmark" >>"$out/benchmarks.log"
        ((status == 0)) || echo "not finished, status $status" >>"$out/benchmark"
        grep -E '^ *(met|MISSED): |^not finished' "$out/benchmark" | sed "s#.*#| $words | & |#" >>"$out/benchmarks.part"
        rm -f "$out/benchmark"
    done
    mv "$out/benchmarks.part" "$out/benchmarks.md"
}

# The stages that need a model: timings of studies, then seed by seed what is trained already and lacks a measurement,
# and each other run followed by its measurements.
by_worth() {
    grep '^python -m formerlab ' | grep -vE '^python -m formerlab (data|exact|draw|claims|runs|track)( |$)' |
        awk '{ seed = match($5, /seed[0-9]+$/) ? substr($5, RSTART + 4) : -1; if ($4 ~ /^(train|load)$/) place[$5] = NR; print seed, place[$5] + 0, NR, $4, $5 }' |
        sort -n -k1,1 -k2,2 -k3,3 | cut -d ' ' -f 4,5
}

trap 'pack; exit 143' TERM INT
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
unpack
plan=$("$python" -m formerlab plan --scale "$scale" --shell) || exit $? # at once, while the time is not spent yet
measure
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
