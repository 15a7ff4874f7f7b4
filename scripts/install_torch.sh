#!/usr/bin/env bash
# Install torch and torchvision at the versions of a lock file, in the build that fits this machine.
#
#   scripts/install_torch.sh .venv requirements.lock    (called by scripts/setup.sh and scripts/test_range.sh)
#
# TORCH_INDEX  package index; default: torch's index of CPU builds, if this machine has neither an NVIDIA GPU nor Slurm
#              (other nodes of a cluster may have GPUs).
#
# If the index does not answer within seconds or does not have the version, this script installs nothing, and the
# caller installs torch from the configured package index.
set -euo pipefail
python=$1/bin/python lock=$2
cpu_builds=https://download.pytorch.org/whl/cpu

log() { printf 'setup: %s\n' "$*" >&2; }

pin=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' "$lock")
installed=$("$python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null || true)
if [[ ${installed%%+*} == "$pin" ]]; then exit; fi

index=${TORCH_INDEX:-}
if [[ -z $index ]]; then
    if [[ $(nvidia-smi --list-gpus 2>/dev/null) == GPU* ]]; then
        log "NVIDIA GPU found, torch $pin comes from the configured package index"
        exit
    elif command -v sbatch >/dev/null; then
        log "Slurm found, torch $pin comes from the configured package index, because other nodes may have GPUs"
        exit
    fi
    index=$cpu_builds
fi

# Use the proxies and certificates of pip's configuration, but not its other indexes and folders of wheels.
empty_folder=$(mktemp -d)
trap 'rmdir "$empty_folder"' EXIT
from_index() {
    PIP_EXTRA_INDEX_URL=$index PIP_FIND_LINKS=$empty_folder "$@" --index-url "$index" --disable-pip-version-check
}
# pip's timeout applies to a single read. A name server or a slow answer may take longer, so `timeout` limits the whole
# call.
offers_torch() {
    local versions
    versions=$(from_index timeout --foreground 20 "$python" -m pip index versions torch --timeout 5 --retries 0 2>/dev/null)
    [[ $versions =~ [\ \(]${pin//./\\.}(\+[a-z0-9.]+)?([,\)]|$) ]]
}
if offers_torch && from_index "$python" -m pip install --no-input --progress-bar off --quiet --no-deps \
    --constraint "$lock" torch torchvision; then
    log "torch $pin comes from $index"
else
    log "$index does not answer or has no torch $pin, so torch comes from the configured package index" \
        "(a download of 3 GB if this index has only the CUDA build)"
fi
