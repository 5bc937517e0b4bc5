#!/usr/bin/env bash
# Make a virtual environment in which the tests marked petsc can run: petsc_venv.sh FOLDER [WHEELS].
#
# With WHEELS, a folder with wheels of petsc and petsc4py: those, and MPICH from PyPI. Without, or where they cannot be
# imported, which it says: Debian's petsc4py 3.18 and its Open MPI, by apt-get. Where neither works it says so, and ends
# with 3. With PETSC=required wheels that do not work are an error. What was made for these wheels, and is newer than
# pyproject.toml, is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
wheels=${2:-}
python=${PYTHON:-python3.11}
PATH=$PATH:/usr/sbin:/sbin  # ldconfig
debian=/usr/lib/petscdir/petsc3.18/x86_64-linux-gnu-real

stamp=$folder/.petsc-stamp
# What the environment is made of.
wanted=debian
[ -z "$wheels" ] || wanted=$(cd "$wheels" && cksum petsc*.whl) || wanted=unreadable

fresh() {
    rm -rf "$folder"
    "$python" -m venv "$folder"
}

pip() { timeout -k 10 600 "$folder/bin/python" -m pip --disable-pip-version-check --quiet install "$@" </dev/null; }

apt() {
    DEBIAN_FRONTEND=noninteractive timeout -k 10 300 \
        apt-get -o DPkg::Lock::Timeout=60 -o Acquire::Retries=0 -qq "$@" </dev/null >/dev/null
}

works() {
    (. "$folder/petsc.env" \
        && timeout -k 10 60 "$folder/bin/python" -c 'import mpi4py.MPI; from petsc4py import PETSc' </dev/null)
}

from_wheels() {
    # PETSc needs a BLAS and a LAPACK of the machine.
    if [[ $(ldconfig -p) != *liblapack.so.3* ]]; then
        apt update || true  # the lists that are there may do
        apt install -y --no-install-recommends libblas3 liblapack3 || return 1
    fi
    fresh || return 1
    pip mpich mpi4py "$wheels"/petsc*.whl --editable '.[report,test]' || return 1
    : >"$folder/petsc.env"
    works
}

from_debian() {
    [ "$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')" = 3.11 ] || return 1
    if [ ! -d "$debian" ]; then
        apt update || true
        apt install -y --no-install-recommends python3-petsc4py || return 1
    fi
    fresh || return 1
    pip mpi4py 'numpy<2' --editable '.[report,test]' || return 1
    local packages
    packages=$("$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    echo "$debian/lib/python3/dist-packages" >"$packages/debian-petsc4py.pth"
    cat >"$folder/petsc.env" <<END
export PETSC_DIR=$debian
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
END
    works
}

if [ "$stamp" -nt pyproject.toml ] && [ "$(cat "$stamp")" = "$wanted" ] && works; then
    echo "petsc4py as it was installed before in $folder"
    exit
fi
if [ -n "$wheels" ]; then
    if from_wheels; then
        echo "petsc4py from the wheels in $wheels"
        echo "$wanted" >"$stamp"
        exit
    fi
    echo "petsc_venv.sh: ***** the wheels in $wheels do NOT work *****" >&2
    if [ "${PETSC:-}" = required ]; then
        rm -rf "$folder"
        exit 1
    fi
fi
if from_debian; then
    echo "petsc4py from Debian's packages"
    [ -n "$wheels" ] || echo "$wanted" >"$stamp"
else
    rm -rf "$folder"
    echo "petsc_venv.sh: petsc4py could be had neither from wheels (${wheels:-none given}) nor from Debian" >&2
    exit 3
fi
