#!/usr/bin/env bash
# Unpack an sdist, collect all of its own tests, and run a few that need neither git nor processes.
# usage: packaging/check_sdist.sh SDIST PYTHON   (an interpreter with the extra `dev`; its installed Atoll is not used)
set -euo pipefail
sdist=$(realpath "$1")
python=$(realpath --no-symlinks "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -xzf "$sdist" -C "$folder" --strip-components=1
cd "$folder"
export PYTHONPATH="$folder/protos:$folder/client:$folder/server:$folder/datacenter:$folder/common"
"$python" -c "import atoll.server as s; assert s.__file__.startswith('$folder'), s.__file__"
"$python" -m pytest -q --collect-only --assert=plain | tail -n 1
"$python" -m pytest -q -p no:cacheprovider tests/text tests/formats tests/test_packaging.py
