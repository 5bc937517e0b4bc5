#!/usr/bin/env bash
# Make a virtual environment in which the tests with other packages can run: interop_venv.sh FOLDER [TORCH_INDEX].
#
# The packages of the extra interop-test come from PyPI. PyTorch comes from TORCH_INDEX, an index of builds for the CPU,
# and from nowhere else: the build on PyPI brings CUDA, gigabytes of it. What cannot be had is named, and its tests skip.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
torch_index=${2:-}

pip() { "$folder/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

[ -x "$folder/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$folder"
pip install --editable '.[report,test]'
extra=$("$folder/bin/python" -c 'import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*(name.replace(" ", "") for name in extras["interop-test"]), sep="\n")')
for package in $extra; do
    pip install "$package" || echo "interop_venv.sh: $package could NOT be installed; the tests with it are NOT run" >&2
done
"$folder/bin/python" -c 'import torch' 2>/dev/null && exit
if [ -z "$torch_index" ]; then
    echo "interop_venv.sh: no TORCH_INDEX is given; the tests with torch are NOT run" >&2
else
    PIP_CONFIG_FILE=/dev/null PIP_EXTRA_INDEX_URL='' PIP_FIND_LINKS='' \
        pip install --retries 0 --timeout 15 --index-url "$torch_index" 'torch>=2.4' 2>/dev/null \
        || echo "interop_venv.sh: torch could NOT be had from $torch_index; the tests with it are NOT run" >&2
fi
