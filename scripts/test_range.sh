#!/usr/bin/env bash
# Test the library and its integrations at one end of the version ranges in pyproject.toml, in a separate environment.
#
#   scripts/test_range.sh oldest    packages of the library and its integrations at the lowest version of their ranges
#   scripts/test_range.sh newest    every package at the newest release that the ranges allow
#
# PYTHON, TORCH_INDEX  as for `make setup` (scripts/setup.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
end=$1 environment=.venv-$1 python=.venv-$1/bin/python
[[ -x $python ]] || "${PYTHON:-python3}" -m venv "$environment"

pip() { "$python" -m pip "$1" --disable-pip-version-check "${@:2}"; }

pins=$environment/pins
case $end in
    oldest)
        "$python" - >"$pins" <<'PYTHON'
import re
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = [project["optional-dependencies"][extra] for extra in ("pipeline", "prune", "zeroshot", "vision")]
for line in sum(extras, project["dependencies"]):
    if lowest := re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", line):
        print(f"{lowest[1]}=={lowest[2]}")
print("sqlalchemy<2.1")  # old releases of mlflow import names that 2.1 removed
PYTHON
        ;;
    newest) # let pip choose the newest torch, so that constraints in its configuration apply
        pip install --quiet --dry-run --ignore-installed --no-deps --report - 'torch>=2.8' |
            "$python" -c 'import json, sys; print("torch==" + json.load(sys.stdin)["install"][0]["metadata"]["version"])' >"$pins"
        ;;
    *) echo "usage: scripts/test_range.sh oldest|newest" >&2; exit 2 ;;
esac

scripts/install_torch.sh "$environment" "$pins"
pip install --progress-bar off --upgrade --upgrade-strategy eager --constraint "$pins" --editable ".[pipeline,test]" >"$environment/install.log" ||
    { tail -n 20 "$environment/install.log" >&2; exit 1; }
pip freeze | grep -iE '^(torch|torchvision|transformers|timm|lm_eval|datasets|mlflow|numpy|pandas|snakemake)=='

# `-o addopts=` replaces the options of pyproject.toml, because these options load a pytest plugin that
# old releases of jaxtyping do not have.
exec "$python" -m pytest -p no:cacheprovider -o addopts='-q --strict-markers' -m 'not slow' tests/layers tests/cache \
    tests/models tests/test_growth*.py tests/kernels tests/huggingface tests/training/test_optimizer.py tests/data/test_hub.py \
    tests/evaluation/test_zeroshot.py tests/evaluation/test_suites.py tests/test_tracking.py tests/test_torchvision_shim.py
