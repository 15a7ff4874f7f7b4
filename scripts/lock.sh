#!/usr/bin/env bash
# Write requirements.lock anew from pyproject.toml (what `make lock` calls; needs the network, changes no environment).
#
#   scripts/lock.sh              pins stay as they are wherever pyproject.toml allows
#   scripts/lock.sh --upgrade    every pin moves to the newest release
#
# uv resolves for every platform and Python from 3.11 at once. The CUDA libraries are left out: torch's own metadata pins
# them, and a CPU build of torch must not bring them along. Triton stays, at the release that the CUDA build of torch
# pins: it needs none of them to try kernels without a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/uv"
"$work/uv/bin/python" -m pip install --disable-pip-version-check --quiet uv
if [[ -f requirements.lock ]]; then cp requirements.lock "$work/resolved"; fi
"$work/uv/bin/uv" pip compile pyproject.toml --extra pipeline --extra test --extra develop --universal --python-version 3.11 \
    --annotation-style line --no-header --quiet --output-file "$work/resolved" "$@"

{
    cat <<'HEADER'
# Exact versions of everything formerlab runs, is tested and developed with, for Python 3.11 to 3.13 on Linux (x86-64
# and arm64). The Makefile and environment.yml both install from here. Written by `make lock`: edit the ranges in
# pyproject.toml instead, then run it (`make lock UPGRADE=1` moves every pin to the newest release).
#
# torch has no local version tag and there are no hashes, so that any build of torch 2.13.0 satisfies its pin, a CPU
# build too. The CUDA libraries are absent on purpose: the CUDA build of torch pins its own.
HEADER
    grep -vE '^(nvidia-|cuda-)' "$work/resolved"
} >"$work/lock"
mv "$work/lock" requirements.lock
