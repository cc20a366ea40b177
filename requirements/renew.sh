#!/usr/bin/env bash
# Renews the locks from the ranges in setup.py: a file for each purpose, all with the same versions,
# for Python 3.11 to 3.13, with the hash of each file. Run it, run the tests, commit all of them.
# It needs uv (`pip install uv`) and keeps what it can; --upgrade takes the newest of everything.
set -euo pipefail
cd "$(dirname "$0")/.."
lock() { # lock FILE EXTRAS [FLAG ...]
  local file=requirements/$1.txt extras=()
  for extra in ${2//,/ }; do extras+=(--extra "$extra"); done
  # setuptools builds this package without a network.
  echo setuptools | uv pip compile setup.py - "${extras[@]}" --generate-hashes --universal \
    --python-version 3.11 --quiet --no-emit-index-url --no-annotate \
    --custom-compile-command requirements/renew.sh --output-file "$file" "${@:3}"
}
lock ci all,dev,gcp,jax,flink "$@" # holds every version but those of CUDA
for purpose in run:build,train,kaggle dev:all,dev pipeline:build,kaggle,dicom,gcp cuda:train,cuda; do
  lock "${purpose%%:*}" "${purpose#*:}" --constraint requirements/ci.txt
done
