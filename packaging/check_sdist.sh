#!/usr/bin/env bash
# Compare an sdist with the files of the checkout, unpack it, and run a few of its own tests from there.
# usage: packaging/check_sdist.sh SDIST PYTHON   (in a checkout that the sdist is built from; an interpreter with the
# extra `dev`, whose installed Atoll is not used)
set -euo pipefail
sdist=$(realpath "$1")
python=$(realpath --no-symlinks "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git ls-files --cached --others --exclude-standard | sort > "$folder/expected"
tar -tzf "$sdist" | cut -d/ -f2- | grep -vx PKG-INFO | sort > "$folder/packed"
diff "$folder/expected" "$folder/packed"
mkdir "$folder/sdist"
tar -xzf "$sdist" -C "$folder/sdist" --strip-components=1
cd "$folder/sdist"
export PYTHONPATH="$PWD/protos:$PWD/client:$PWD/server:$PWD/datacenter:$PWD/common"
"$python" -c "import atoll.server as s; assert s.__file__.startswith('$PWD'), s.__file__"
"$python" -m pytest -q -p no:cacheprovider tests/text tests/formats tests/test_packaging.py
