#!/usr/bin/env bash
# Try the integrations on the newest releases of what they integrate, in an environment of its own beside the given one.
#
#   scripts/test_newest.sh .venv             (what `make test-newest` calls)
#
# Everything else, torch among it, is that of the given environment. Where this passes, pyproject's caps may be raised.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
locked=$(cd "$1" && pwd)
newest=$locked-newest
"$locked/bin/python" -m venv "$newest"
site=$("$newest/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$locked/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/locked.pth"
printf '%s\n' "$PWD/src" >"$site/source.pth"
"$newest/bin/python" -m pip install --disable-pip-version-check --quiet --upgrade --no-deps \
    transformers huggingface_hub tokenizers timm lm_eval datasets mlflow mlflow-skinny mlflow-tracing
"$newest/bin/python" -m pip freeze --path "$site" | grep -v '^pip=='
exec "$newest/bin/python" -m pytest -q -p no:cacheprovider tests/huggingface tests/evaluation/test_zeroshot.py \
    tests/evaluation/test_suites.py tests/models/test_vision.py tests/data/test_hub.py tests/test_tracking.py
