#!/usr/bin/env bash
# Make a virtual environment in which the tests marked petsc can run: petsc_venv.sh FOLDER [WHEELS].
#
# With WHEELS, a folder with wheels of petsc and petsc4py: those, and MPICH from PyPI. Without, or where they cannot be
# imported: Debian's petsc4py 3.18 and its Open MPI, by apt-get. Where neither works it says why, and ends with 3.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
wheels=${2:-}
python=${PYTHON:-python3.11}
PATH=$PATH:/usr/sbin:/sbin  # ldconfig
debian=/usr/lib/petscdir/petsc3.18/x86_64-linux-gnu-real

fresh() {
    rm -rf "$folder"
    "$python" -m venv "$folder"
}

pip() { "$folder/bin/python" -m pip --disable-pip-version-check --quiet install "$@"; }

apt() { timeout 300 apt-get -o DPkg::Lock::Timeout=60 -o Acquire::Retries=0 -qq "$@" >/dev/null; }

works() { (. "$folder/petsc.env" && "$folder/bin/python" -c 'import mpi4py.MPI; from petsc4py import PETSc'); }

from_wheels() {
    ls "$wheels"/petsc4py-*.whl >/dev/null || return 1
    # PETSc needs a BLAS and a LAPACK of the machine.
    if ! ldconfig -p | grep -q 'liblapack\.so\.3'; then
        apt update && apt install -y --no-install-recommends libblas3 liblapack3 || return 1
    fi
    fresh
    pip mpich mpi4py "$wheels"/petsc*.whl --editable '.[report,test]' || return 1
    : >"$folder/petsc.env"
    works
}

from_debian() {
    [ "$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')" = 3.11 ] || return 1
    [ -d "$debian" ] || { apt update && apt install -y --no-install-recommends python3-petsc4py; } || return 1
    fresh
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

if [ -n "$wheels" ] && from_wheels; then
    echo "petsc4py from the wheels in $wheels"
elif from_debian; then
    echo "petsc4py from Debian's packages"
else
    rm -rf "$folder"
    echo "petsc_venv.sh: petsc4py could be had neither from wheels (${wheels:-none given}) nor from Debian" >&2
    exit 3
fi
