#!/usr/bin/env bash
# Use a machine with a GPU unattended for a given time: run the benchmark, run jobs, and pack the results.
#
#   scripts/gpu_queue.sh SECONDS OUT [SCALE]     (SCALE: default workstation)
#
# 1. If the folder CARRIED (default: carried) exists, the script installs its wheels and unpacks its archives (*.tar,
#    *.tar.gz) into the checkout. The archives contain prepared data sets (results/live/SCALE/data) and the results of an
#    earlier call. torch must already be installed. To fill the folder on another machine:
#      pip download --no-deps --only-binary=:all: --python-version 3.12 --dest carried -r <(grep -vE '^(torch|triton|nvidia)' requirements.lock)
#    Question suites also need lm-eval and its dependencies. Runs on several GPUs need torch 2.13 or later. If packages
#    are missing, the script lists them and exits.
# 2. The GPU benchmark (benchmarks/gpu.py) runs for at most BENCHMARK_S seconds: kernel tests; peak FLOP/s and memory bandwidth;
#    timings of kernels, training steps and decoding; failure tests. The script skips it if OUT/gpu.txt exists.
# 3. In the remaining time, the script runs the missing jobs of `python -m formerlab plan --shell`: timings, then the
#    first seed of every run with its measurements, then the second seed, and so on. Training saves a checkpoint and stops
#    before the time limit, and the next call resumes it.
# The script writes these files to the folder OUT:
#   rows.tar.gz     all metrics tables, records and YAML files, without the prepared data
#   resume-*.tar    all checkpoints and weights, in archives of at most ARCHIVE_MB; a larger file has its own archive
#   gpu.txt         one line per number of the benchmark, written as soon as the number is measured
#   gpu.log         errors of the benchmark
#   tests.log       output of the kernel tests
#   log             end time (seconds since the start) and exit status of every job
# To continue on another machine, copy rows.tar.gz and resume-*.tar into CARRIED, next to the archives of prepared data.
set -uo pipefail

budget=${1:?usage: scripts/gpu_queue.sh SECONDS OUT [SCALE]}
out=${2:?usage: scripts/gpu_queue.sh SECONDS OUT [SCALE]}
scale=${3:-workstation}
margin=${MARGIN_S:-60}    # seconds reserved for packing
archive_mb=${ARCHIVE_MB:-15} # maximum size in MB of a resume-*.tar with several files
benchmark_s=${BENCHMARK_S:-560}
input_folder=${CARRIED:-carried}
python=${PYTHON:-python3}
results=results/live/$scale
started=$SECONDS
mkdir -p "$out"

log_line() { printf '%6ds  %s\n' "$((SECONDS - started))" "$*" | tee -a "$out/log"; }
seconds_left() { echo $((budget - margin - (SECONDS - started))); }

# until_second SECOND COMMAND...: run a command and stop it SECOND seconds after the start of the script.
until_second() {
    local remaining=$(($1 - (SECONDS - started)))
    ((remaining > 0)) || return 124
    timeout --signal=TERM --kill-after=30 "$remaining" "${@:2}" </dev/null
}

unpack() {
    [ -d "$input_folder" ] || return 0
    local file wheels=()
    for file in "$input_folder"/*.tar "$input_folder"/*.tar.gz; do [ ! -e "$file" ] || tar xf "$file"; done
    for file in "$input_folder"/*.whl; do [ ! -e "$file" ] || wheels+=("$file"); done
    if ((${#wheels[@]})); then
        "$python" -m pip install --quiet --no-index --no-deps --upgrade --target .carried "${wheels[@]}" || exit $?
        export PYTHONPATH="$PWD/.carried:$PYTHONPATH"
    fi
    log_line "unpacked $input_folder: ${#wheels[@]} wheels"
}

pack() {
    [ -d "$results" ] || return 0
    find "$results" -type f \( -name '*.csv' -o -name '*.json' -o -name '*.yaml' \) ! -path "$results/data/*" -print0 |
        tar czf "$out/rows.tar.gz" --null -T -
    rm -f "$out"/resume-*.tar
    # An archive has as many files as fit into archive_mb. A larger file has its own archive.
    find "$results" -type f \( -name '*.pt' -o -name '*.safetensors' \) -printf '%s %p\n' | sort -n |
        awk -v limit="$((archive_mb * 1000000))" '{ if (!archive || size + $1 > limit) { archive++; size = 0 } size += $1; print archive, substr($0, index($0, $2)) }' |
        while read -r archive path; do tar rf "$out/resume-$archive.tar" "$path"; done
    log_line "packed: $(du -sh "$out" | cut -f1) in $out"
}

run_benchmark() {
    [ ! -e "$out/gpu.txt" ] || return 0
    local seconds=$(($(seconds_left) < benchmark_s ? $(seconds_left) : benchmark_s))
    "$python" benchmarks/gpu.py --seconds "$seconds" --out "$out" </dev/null
    log_line "the benchmark ended with status $?; every line is in gpu.txt"
}

# Select the stages that need a model, and sort them: timings first, then by seed. Within a seed, the missing measurements
# of finished runs come first, and then every other run with its measurements.
by_priority() {
    grep '^python -m formerlab ' | grep -vE '^python -m formerlab (data|exact|draw|claims|runs|track)( |$)' |
        awk '{ seed = match($5, /seed[0-9]+$/) ? substr($5, RSTART + 4) : -1; if ($4 ~ /^(train|load)$/) line[$5] = NR; print seed, line[$5] + 0, NR, $4, $5 }' |
        sort -n -k1,1 -k2,2 -k3,3 | cut -d ' ' -f 4,5
}

# Stop if a package that the jobs or the kernel tests need is missing.
check_packages() {
    local missing
    missing=$("$python" -c 'import importlib.util as u; print(*(n for n in "torch numpy pydantic annotated_types typing_inspection babel jaxtyping psutil filelock tqdm yaml tabulate safetensors tokenizers pytest hypothesis".split() if u.find_spec(n) is None))') || exit $?
    [ -z "$missing" ] || { log_line "missing packages: $missing; put their wheels into $input_folder (see the top of this script)"; exit 2; }
}

trap 'pack; exit 143' TERM INT
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
unpack
check_packages
run_benchmark
if (($(seconds_left) <= 0)); then log_line "out of time before the jobs"; pack; exit 0; fi
plan=$("$python" -m formerlab plan --scale "$scale" --shell) || exit $?
eval "$(grep '^export ' <<<"$plan")" # exports FORMERLAB_PLAN (quoted) and OMP_NUM_THREADS
log_line "scale $scale, $(grep -c '^python' <<<"$plan") jobs missing, budget ${budget}s"

by_priority <<<"$plan" | while read -r stage id; do
    if (($(seconds_left) <= 0)); then log_line "out of time before $stage $id"; break; fi
    options=()
    [ "$stage" = train ] && options=(--time-limit "$(seconds_left)" --margin 10)
    until_second "$((budget - margin + 15))" "$python" -m formerlab "$stage" "$id" "${options[@]}"
    log_line "$stage $id ended with status $?"
done
pack
