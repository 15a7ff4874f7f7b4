#!/usr/bin/env bash
# Rewrite requirements.lock and requirements-develop.lock from pyproject.toml (called by `make lock`; needs the network, changes no environment).
#
#   scripts/lock.sh              keep the pins that pyproject.toml allows
#   scripts/lock.sh --upgrade    move every pin to the newest release
#
# uv resolves for all platforms and all Python versions from 3.11. requirements.lock has the packages that formerlab
# needs at run time, and requirements-develop.lock the packages for tests and development. Both leave out the CUDA
# libraries: torch's metadata pins them, and a CPU build of torch must not install them. requirements-develop.lock
# includes Triton for the tests, at the version that the CUDA build of torch pins.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/uv"
"$work/uv/bin/python" -m pip install --disable-pip-version-check --quiet uv

compile() { # OUTPUT [OPTION...]; uv keeps the existing pins of OUTPUT if possible
    "$work/uv/bin/uv" pip compile pyproject.toml --extra pipeline --universal --python-version 3.11 \
        --annotation-style line --no-header --quiet --output-file "$@"
}
cat requirements.lock requirements-develop.lock >"$work/all" 2>/dev/null || true
compile "$work/all" --extra test --extra develop "$@"
cp "$work/all" "$work/run"
compile "$work/run"

{
    cat <<'HEADER'
# Exact versions of all run-time dependencies, for Python 3.11 to 3.13 on Linux (x86-64 and arm64). The Makefile and
# environment.yml install them. `make lock` writes this file; do not edit it. To change a version, edit the ranges in
# pyproject.toml and run `make lock` (`make lock UPGRADE=1` moves every pin to the newest release).
#
# torch has no local version tag and there are no hashes, so that any build of the pinned torch version, such as a CPU
# build, satisfies its pin. The CUDA libraries and Triton are left out: the CUDA build of torch pins its own.
HEADER
    grep -vE '^(nvidia-|cuda-|triton==)' "$work/run"
} >"$work/run.lock"
{
    cat <<'HEADER'
# Exact versions of the packages that tests and development add to requirements.lock (`make test`, `make lint`).
# Written by `make lock`.
HEADER
    awk -F'==' 'NR == FNR { runs[$1]; next } !($1 in runs)' "$work/run.lock" "$work/all" | grep -vE '^(nvidia-|cuda-)'
} >"$work/develop.lock"
mv "$work/run.lock" requirements.lock
mv "$work/develop.lock" requirements-develop.lock
