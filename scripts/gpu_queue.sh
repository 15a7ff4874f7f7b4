#!/usr/bin/env bash
# Run what a scale still lacks on this machine, unattended, until a time budget is used up; then pack what came out.
#
#   scripts/gpu_queue.sh SECONDS OUT [SCALE]     (SCALE: workstation unless given)
#
# Jobs run in the order of `python -m formerlab plan --shell`, parents first. Training stops itself, checkpointed, before
# the time is up, and the next call goes on with it. Into the folder OUT go few files:
#   rows.tar.gz     every row, record and sidecar of finished jobs (no weights)
#   resume-*.tar    checkpoints of unfinished runs and weights that other missing jobs need, in parts of at most PART_MB
#   log             what was run, how long it took, how it ended
# To go on elsewhere, unpack all of them in the root of the checkout first: `for f in OUT/*.tar*; do tar xf "$f"; done`.
# The data set of the scale must be there already (`python -m formerlab data text --scale SCALE`).
set -uo pipefail

budget=${1:?usage: scripts/gpu_queue.sh SECONDS OUT [SCALE]}
out=${2:?usage: scripts/gpu_queue.sh SECONDS OUT [SCALE]}
scale=${3:-workstation}
margin=${MARGIN_S:-60}    # seconds kept for packing
part_mb=${PART_MB:-15}    # largest part of resume-*.tar, MB
python=${PYTHON:-python3}
results=results/live/$scale
started=$SECONDS
mkdir -p "$out"

note() { printf '%6ds  %s\n' "$((SECONDS - started))" "$*" | tee -a "$out/log"; }

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
trap 'pack; exit 143' TERM INT

plan=$("$python" -m formerlab plan --scale "$scale" --shell) || exit $?
export FORMERLAB_PLAN OMP_NUM_THREADS
FORMERLAB_PLAN=$(sed -n 's/^export FORMERLAB_PLAN=//p' <<<"$plan")
OMP_NUM_THREADS=$(sed -n 's/^export OMP_NUM_THREADS=//p' <<<"$plan")
note "scale $scale, $(grep -c '^python' <<<"$plan") jobs missing, budget ${budget}s"

grep -E '^python -m formerlab (speed|decode|train|zeroshot|prune|flow|translate|complexity) ' <<<"$plan" | while read -r _ _ _ stage id _; do
    left=$((budget - margin - (SECONDS - started)))
    if ((left <= 0)); then note "out of time before $stage $id"; break; fi
    options=()
    [ "$stage" = train ] && options=(--time-limit "$left" --margin 10 --on-mismatch restart)
    timeout --signal=TERM --kill-after=30 "$((left + 15))" "$python" -m formerlab "$stage" "$id" "${options[@]}" </dev/null
    note "$stage $id ended with status $?"
done
pack
