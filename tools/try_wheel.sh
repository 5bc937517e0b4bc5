#!/usr/bin/env bash
# Try a wheel as a new user would: try_wheel.sh WHEEL. A fresh environment, an empty HOME, no variable of finelu's or
# Numba's: the command, the demo, and the first Python example of README.md. Ends with the status of what fails first.
set -euo pipefail
wheel=$(realpath "$1")
readme=$(realpath "$(dirname "$0")/../README.md")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet install "$wheel"
mkdir "$folder/home"
cd "$folder/home"
awk '/^```/ { inside = /^```python$/ && !done; done = done || inside; next } inside' "$readme" >"$folder/example.py"
[ -s "$folder/example.py" ]
for command in "finelu --version" "finelu info" "finelu solve gallery:poisson7:60" "python $folder/example.py"; do
    echo "\$ ${command/$folder\//}"
    env -i HOME="$folder/home" PATH="$folder/venv/bin:/usr/bin:/bin" $command
done
