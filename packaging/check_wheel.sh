#!/usr/bin/env bash
# Install a wheel with its extra `demo` into an empty environment, away from any checkout, and run the demonstration.
# usage: packaging/check_wheel.sh WHEEL PYTHON   (an interpreter with pip; CONSTRAINTS: the file of versions)
set -euo pipefail
wheel=$(realpath "$1")
python=$(realpath --no-symlinks "$2")
constraints=$(realpath "${CONSTRAINTS:-constraints.txt}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$python" -m venv --without-pip empty
# Not compiled: the demonstration imports a tenth of what is installed.
"$python" -m pip --python empty/bin/python --disable-pip-version-check --quiet install --no-compile -c "$constraints" "$wheel[demo]"
empty/bin/python - <<'PROBE'
import pkgutil
from importlib.metadata import metadata
from importlib.resources import files

import atoll

about = metadata("atoll")
assert about["License-Expression"] == "Apache-2.0" and about.get_all("License-File") == ["LICENSE"], about
packages = [found.name for found in pkgutil.iter_modules(atoll.__path__)]
untyped = [name for name in packages if not (files(f"atoll.{name}") / "py.typed").is_file()]
assert len(packages) >= 4 and not untyped, (packages, untyped)
PROBE
timeout 300 empty/bin/atoll demo --report report.html --json > summary.json
test -s report.html
grep -q '"status": *"finished"' summary.json
empty/bin/atoll new study wards --framework sklearn
(cd wards && ../empty/bin/atoll simulate job.toml --participants participant.py:Site --population 3 -o simulated)
test -s wards/simulated/model.safetensors
echo "wheel: a new study was simulated, and the demonstration finished in an empty environment"
