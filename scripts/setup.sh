#!/usr/bin/env bash
# Set up a Python environment with everything in requirements.lock, and formerlab itself from this folder.
#
#   scripts/setup.sh .venv               (called by `make setup`)
#
# PYTHON       the Python that creates the environment; default: python3
# TORCH_INDEX  package index for torch and torchvision only; default: chosen by scripts/install_torch.sh
#
# A repeated call installs only missing packages. A build such as torch 2.13.0+cpu satisfies the lock's torch 2.13.0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=${1:-.venv}
lock=requirements.lock

log() { printf 'setup: %s\n' "$*" >&2; }

make_environment() {
    local python=${PYTHON:-python3} version
    version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || {
        log "cannot run $python; formerlab needs Python 3.11 to 3.13; name one: make setup PYTHON=python3.12"
        exit 2
    }
    case $version in
        3.11.* | 3.12.* | 3.13.*) ;;
        *)
            log "formerlab needs Python 3.11 to 3.13, but $python is $version; name another: make setup PYTHON=python3.12"
            exit 2
            ;;
    esac
    log "creating $environment with Python $version"
    if [[ -d $environment/bin ]]; then  # venv fails if links point to a removed Python
        find -L "$environment/bin" -name 'python*' -type l -delete
    fi
    "$python" -m venv "$environment"
}

# Hide pip's deprecation warnings about builds, and its warnings about configured locations that do not exist.
pip_install() {
    "$environment/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" \
        2> >(grep --invert-match --extended-regexp '^ *DEPRECATION: |^WARNING: Location .* is ignored' >&2)
}

# Show the number of packages and the large downloads instead of pip's lines.
show_progress() {
    local total count=0 line
    total=$(grep -c '==' "$lock")
    while IFS= read -r line; do
        case $line in
            *"(from -r $lock (line "*)
                count=$((count + 1))
                if ((count % 25 == 0)); then log "$count of $total packages found"; fi
                ;;
            *"Downloading "*" GB)" | *"Downloading "*[0-9][0-9].[0-9]" MB)") log "downloading ${line##*Downloading }" ;;
            "Installing collected packages: "*) log "unpacking, a minute or two" ;;
        esac
    done
}

# The scripts of an environment contain its path, so the environment of a moved or copied checkout must be created again.
if [[ $environment != /* && -f $environment/pyvenv.cfg && -f $environment/.ready && $(<"$environment/.ready") != "$(pwd -P)" ]]; then
    rm -rf "$environment"
fi
if ! "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
    make_environment
fi
scripts/install_torch.sh "$environment" "$lock"
pip_install --requirement "$lock" | show_progress
pip_install --quiet --no-deps --no-build-isolation --editable .
"$environment/bin/python" - >&2 <<'PYTHON'
import platform
from importlib.metadata import version

import torch

print(f"setup: ready, Python {platform.python_version()}, torch {torch.__version__}, formerlab {version('formerlab')}")
try:
    import torchvision  # noqa: F401
except RuntimeError:
    print(
        "setup: torchvision was built for another build of torch; formerlab works around this.",
        "In your own code, run `from formerlab import prune` before you import model classes from transformers.",
    )
PYTHON
