#!/usr/bin/env bash
# Set up a Python environment with everything in requirements.lock, and formerlab itself from this folder.
#
#   scripts/setup.sh .venv               (what `make setup` calls)
#
# PYTHON       which Python makes the environment, python3 unless told
# TORCH_INDEX  package index for torch and torchvision alone (scripts/install_torch.sh chooses one)
#
# What is there already and matches the lock is kept, so a second call, or one after an interruption, needs only what
# is missing; and a torch 2.13.0+cpu that pip finds, or that is installed, stands for the lock's torch 2.13.0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=${1:-.venv}
lock=requirements.lock

say() { printf 'setup: %s\n' "$*" >&2; }

make_environment() {
    local python=${PYTHON:-python3} found
    found=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || {
        say "cannot run $python; formerlab needs Python 3.11 to 3.13, name one: make setup PYTHON=python3.12"
        exit 2
    }
    case $found in
        3.11.* | 3.12.* | 3.13.*) ;;
        *)
            say "formerlab needs Python 3.11 to 3.13, $python is $found; name another: make setup PYTHON=python3.12"
            exit 2
            ;;
    esac
    say "making $environment with Python $found"
    if [[ -d $environment/bin ]]; then  # links to a Python that is gone would stop venv
        find -L "$environment/bin" -name 'python*' -type l -delete
    fi
    "$python" -m venv "$environment"
}

# What pip says about how other packages are built, and about places of its configuration that are empty, is left out.
pip_install() {
    "$environment/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" \
        2> >(grep --invert-match --extended-regexp '^ *DEPRECATION: |^WARNING: Location .* is ignored' >&2)
}

# Pip says several lines per package: count those of the lock and name the downloads that take a while.
show_progress() {
    local total count=0 line
    total=$(grep -c '==' "$lock")
    while IFS= read -r line; do
        case $line in
            *"(from -r $lock (line "*)
                count=$((count + 1))
                if ((count % 25 == 0)); then say "$count of $total packages found"; fi
                ;;
            *"Downloading "*" GB)" | *"Downloading "*[0-9][0-9].[0-9]" MB)") say "downloading ${line##*Downloading }" ;;
            "Installing collected packages: "*) say "unpacking, a minute or two" ;;
        esac
    done
}

# An environment names its folder in every script, so one that came here with a moved or copied checkout is made anew.
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
        "setup: torchvision is made for another build of torch, which formerlab works around;",
        "in your own code, `from formerlab import prune` comes before model classes of transformers",
    )
PYTHON
