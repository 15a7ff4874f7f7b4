#!/usr/bin/env bash
# Install torch and torchvision at the versions of a lock file, as the build that fits this machine.
#
#   scripts/install_torch.sh .venv requirements.lock    (what scripts/setup.sh calls)
#
# TORCH_INDEX  the index to ask. By default, torch's index of CPU builds if this machine has no NVIDIA GPU and is no
#              login node of Slurm, whose other nodes may have GPUs.
#
# An index that does not answer within seconds, or that has no such version, is no failure: the lock is installed next,
# and takes torch from the configured package index.
set -euo pipefail
python=$1/bin/python lock=$2
cpu_builds=https://download.pytorch.org/whl/cpu

say() { printf 'setup: %s\n' "$*" >&2; }

pin=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' "$lock")
installed=$("$python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null || true)
if [[ ${installed%%+*} == "$pin" ]]; then exit; fi

index=${TORCH_INDEX:-}
if [[ -z $index ]]; then
    if [[ $(nvidia-smi --list-gpus 2>/dev/null) == GPU* ]]; then
        say "NVIDIA GPU found, torch $pin comes from the configured package index"
        exit
    elif command -v sbatch >/dev/null; then
        say "Slurm found, torch $pin comes from the configured package index, for nodes with GPUs"
        exit
    fi
    index=$cpu_builds
fi

# Of pip's configuration, proxies and certificates count here; other indexes and folders of wheels do not.
nothing=$(mktemp -d)
trap 'rmdir "$nothing"' EXIT
from_index() {
    PIP_EXTRA_INDEX_URL=$index PIP_FIND_LINKS=$nothing "$@" --index-url "$index" --disable-pip-version-check
}
# The time limit of pip is for one read; a name server or a slow answer may take longer.
offers_torch() {
    local versions
    versions=$(from_index timeout --foreground 20 "$python" -m pip index versions torch --timeout 5 --retries 0 2>/dev/null)
    [[ $versions =~ [\ \(]${pin//./\\.}(\+[a-z0-9.]+)?([,\)]|$) ]]
}
if offers_torch && from_index "$python" -m pip install --no-input --progress-bar off --quiet --no-deps \
    --constraint "$lock" torch torchvision; then
    say "torch $pin comes from $index"
else
    say "$index does not answer or has no torch $pin: it comes from the configured package index" \
        "(3 GB if that offers the CUDA build alone)"
fi
