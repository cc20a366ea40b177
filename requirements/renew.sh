#!/usr/bin/env bash
# Renews the lock from the ranges in setup.py. Run it, run the tests, commit both.
# It needs uv (`pip install uv`). It keeps what it can of the old lock; --upgrade takes the newest of
# everything.
set -euo pipefail
cd "$(dirname "$0")/.."
uv pip compile setup.py --extra all --extra croissant --extra cuda --extra docs --extra flink --extra gcp \
  --extra jax --extra lint --extra onnx \
  --python-version 3.11 --quiet --no-emit-index-url \
  --custom-compile-command requirements/renew.sh --output-file requirements/lock.txt "$@"
