"""Structured grids of several blocks that meet at interfaces, on one process or on many: `Interface`, `MultiblockGrid`.

L. Luo, J. R. Edwards, H. Luo, F. Mueller: A fine-grained block ILU scheme on regular structures for GPGPUs, sections 1
and 2, for a multi-block domain over message passing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.device import namespace, require_one_device, to_host
from finelu.errors import MatrixError, ParameterError
from finelu.matrix.ghosts import connected, gpu_of, post, queue
from finelu.processes import agreed, end_together, private, share_cores
from finelu.validation import count

AXES = "ijk"
FACES = ("k-", "j-", "i-", "i+", "j+", "k+")  # in the order of the blocks alpha to eta of a StencilMatrix

Name = Hashable


@dataclass(frozen=True)
class Interface:
    """Two faces of blocks that coincide in space: the cells of both meet one to one.

    block, other : names of the blocks; the same name if a grid closes on itself.
    face, other_face : "i-", "i+", "j-", "j+", "k-" or "k+": "i-" has the cells with i = 0, "i+" those with the largest
        i, and so on.
    along : for each of the two axes of the face of `block`, in the order i, j, k, the parallel axis of `other`; a minus
        sign means the opposite direction: ("-i", "k"). None: the axes of the other face, in their order.
    Raises MatrixError for faces and axes that do not exist.
    """

    block: Name
    face: str
    other: Name
    other_face: str
    along: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        for face in (self.face, self.other_face):
            if face not in FACES:
                raise MatrixError(f"{self}: {face!r} is no face; the faces of a block are {', '.join(sorted(FACES))}.")
        if (self.block, self.face) == (self.other, self.other_face):
            raise MatrixError(f"{self} joins a face with itself; two faces are needed.")
        given = self.along
        if given is not None:
            needed = tangents(self.other_face)
            if not isinstance(given, tuple | list) or sorted(str(a).removeprefix("-") for a in given) != sorted(needed):
                raise MatrixError(
                    f"{self}: along={given!r}; the two axes of face {self.other_face}, {needed[0]} and {needed[1]}, "
                    "each with or without a minus sign, are needed."
                )
            object.__setattr__(self, "along", tuple(given))

    @property
    def axes(self) -> tuple[str, str]:
        """`along`, never None."""
        return self.along or tangents(self.other_face)

    @property
    def back(self) -> Interface:
        """The same interface, seen from the other block."""
        own = tangents(self.face)
        along = []
        for axis in tangents(self.other_face):
            k = next(k for k in range(2) if self.axes[k].lstrip("-") == axis)
            along.append(self.axes[k].replace(axis, own[k]))
        return Interface(self.other, self.other_face, self.block, self.face, (along[0], along[1]))

    def oriented(self, layers: Any) -> Any:
        """Layers of cells (depth, s1, s2, ...) at the other face, along the axes of this one: (depth, t1, t2, ...)."""
        first, second = self.axes
        if tangents(self.other_face).index(first.lstrip("-")) == 1:
            layers = layers.swapaxes(1, 2)
        step = [slice(None, None, -1 if axis.startswith("-") else None) for axis in (first, second)]
        return layers[:, step[0], step[1]]

    def __str__(self) -> str:
        along = "" if self.along is None else f", along={self.along}"
        return f"Interface({self.block!r}, {self.face!r}, {self.other!r}, {self.other_face!r}{along})"


def tangents(face: str) -> tuple[str, str]:
    """The two axes of a face."""
    first, second = (axis for axis in AXES if axis != face[0])
    return first, second


class MultiblockGrid:
    """Blocks of cells, and the interfaces at which they meet; each process has some of the blocks.

    shapes : {name: (I, J, K)} of the blocks of this process, or a list, whose names are 0, 1, ... In two dimensions
        K = 1.
    interfaces : those of the whole grid, the same on each process. A face is in at most one; a face in none is a
        boundary of the domain.
    comm : an mpi4py communicator of all processes that have blocks; None for one process. With it, all of them must
        make grids, matrices and factors, exchange, multiply and solve together, with numbers of one dtype. Messages are
        sent on a communicator of finelu's own. The first such grid divides the cores of a machine among its processes,
        unless they are bound to cores or a number of threads was set, and lets an uncaught exception end all processes.
    names : of the blocks of this process, in their order.
    shapes, interfaces : as given.
    owner : {name: process}.
    Raises MatrixError, the same on all processes, for a block on no process or on two, a process without a block, and
    interfaces whose faces do not match.
    """

    def __init__(self, shapes: Any, interfaces: Sequence[Interface] = (), comm: Any = None):
        self.comm = None
        if comm is not None and comm.size > 1:
            self.comm = private(comm)
            end_together()
            share_cores(self.comm)
            own = agreed(self.comm, lambda: (_checked_shapes(shapes), tuple(interfaces)), named=True)
            given = self.comm.allgather(own)
        else:
            own = _checked_shapes(shapes), tuple(interfaces)
            given = [own]
        self.shapes, self.interfaces = own
        self.names = tuple(self.shapes)
        self._everywhere: dict[Name, tuple[int, int, int]] = {}
        self.owner: dict[Name, int] = {}
        for rank, (blocks, theirs) in enumerate(given):
            if not blocks:
                raise MatrixError(
                    f"process {rank} of {len(given)} has no block; start no more processes than there are blocks."
                )
            if theirs != given[0][1]:
                raise MatrixError(f"processes 0 and {rank} were given different interfaces; all need the same list.")
            for name, shape in blocks.items():
                if name in self.owner:
                    raise MatrixError(
                        f"block {name!r} is on processes {self.owner[name]} and {rank}; give it to one of them."
                    )
                self.owner[name], self._everywhere[name] = rank, shape
        # By the devices of all processes: what its matrices share, see matrix/multiblock.py.
        self.across: dict[Any, Any] = {}
        # The GPU of the arrays of this process in the first `exchange`, and NCCL between the processes, or None.
        self._decided: tuple[int, Any] | None = None
        # Each joined face, as its block sees it.
        self._joined: dict[tuple[Name, str], Interface] = {}
        for interface in self.interfaces:
            self._check(interface)
            for side in (interface, interface.back):
                if (side.block, side.face) in self._joined:
                    raise MatrixError(f"face {side.face} of block {side.block!r} is in two interfaces; one is allowed.")
                self._joined[side.block, side.face] = side

    def _check(self, interface: Interface) -> None:
        if not isinstance(interface, Interface):
            raise MatrixError(f"interfaces holds a {type(interface).__name__}; Interface(...) is needed.")
        for name in (interface.block, interface.other):
            if name not in self._everywhere:
                raise MatrixError(f"{interface}: there is no block {name!r}; there are {_listed(self._everywhere)}.")
        own, other = (self._everywhere[name] for name in (interface.block, interface.other))
        for mine, theirs in zip(tangents(interface.face), interface.axes, strict=True):
            here, there = own[AXES.index(mine)], other[AXES.index(theirs[-1])]
            if here != there:
                raise MatrixError(
                    f"{interface} does not match: block {interface.block!r} has {here} cells along {mine}, block "
                    f"{interface.other!r} has {there} along {theirs[-1]}."
                )

    @property
    def cells(self) -> int:
        """Cells of the blocks of this process."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def joined(self, name: Name) -> dict[str, Interface]:
        """{face: interface, as this block sees it} for the faces of a block that are in an interface."""
        return {face: self._joined[name, face] for face in FACES if (name, face) in self._joined}

    def exchange(self, arrays: Mapping[Name, Any], depth: int = 1) -> dict[Name, dict[str, Any]]:
        """The layers of cells beyond each interface, for each block of this process; all processes must call it.

        arrays : {name: (I, J, K, ...)}, NumPy or CuPy, those of a process on one device; further axes, the same for all
            blocks, are copied unchanged (no vector is rotated).
        depth : the number of layers, 1 or more.
        Returns {name: {face: layers}}, oriented as the block: with `depth` cells across its face they continue the
        array, so that concatenate((ghosts["i-"], array, ghosts["i+"]), axis=0) is the block with its neighbours.
        Raises ParameterError for a depth that a block does not have. Raises on its process alone MatrixError for an
        array of another shape than its block's and, if the grid is spread over processes, for arrays on another device
        than in its first exchange. Raises DeviceError for arrays on several devices or on a GPU that is not current: in
        the first exchange on all processes, later on its process alone.
        Cost: copies of the layers. Those of other processes are sent by NCCL if each process has its arrays on a GPU of
        its own, else through the host. All processes decide this together in the first exchange; in later ones only
        neighbours communicate.
        """
        count("depth", depth, 1)
        for (name, face), shape in ((key, self._everywhere[key[0]]) for key in self._joined):
            if shape[AXES.index(face[0])] < depth:
                have = shape[AXES.index(face[0])]
                raise ParameterError(f"depth={depth}: block {name!r} has {have} cells across face {face}.")
        for name in self.names:
            array = arrays[name]
            if tuple(array.shape[:3]) != self.shapes[name]:
                raise MatrixError(
                    f"the array of block {name!r} has shape {array.shape}, but its cells {self.shapes[name]}."
                )
            if array.dtype.hasobject:
                raise MatrixError(f"the array of block {name!r} holds Python objects; numbers are needed.")
        connection = self._connection(arrays)
        found = self.traded(
            {name: {face: layers_at(arrays[name], face, depth) for face in self.joined(name)} for name in self.names},
            connection,
        )
        return {name: {face: _back(layers, face) for face, layers in found[name].items()} for name in self.names}

    def traded(self, slabs: Mapping[Name, Mapping[str, Any]], connection: Any) -> dict[Name, dict[str, Any]]:
        """The layers at the other side of each face, in exchange for the layers at this side.

        slabs : {name: {face: (depth, t1, t2, ...)}}; the depth counts from the face on, t1 and t2 are its axes. The
            result has the axes of this side.
        connection : NCCL between the processes, the same on all, for slabs on their GPUs; None: MPI, through the host.
        """
        found: dict[Name, dict[str, Any]] = {name: {} for name in self.names}
        sides: list[Interface] = []
        leaving: list[tuple[int, Any]] = []
        arriving: list[tuple[int, Any]] = []
        for interface in self.interfaces:  # in the same order on all, so that messages meet
            for side in (interface, interface.back):
                here, there = (name in self.shapes for name in (side.block, side.other))
                if here and there:
                    found[side.block][side.face] = side.oriented(slabs[side.other][side.other_face]).copy()
                elif there:  # sent in the layout of the other side
                    layers = side.oriented(slabs[side.other][side.other_face])
                    layers = namespace(layers).ascontiguousarray(layers)
                    leaving.append((self.owner[side.block], layers if connection else to_host(layers)))
                elif here:
                    layers = slabs[side.block][side.face]
                    xp = namespace(layers) if connection else np
                    arriving.append((self.owner[side.other], xp.empty(layers.shape, layers.dtype)))
                    sides.append(side)
        if connection:
            queue(self.comm, connection, leaving, arriving)
            connection.wait()
        elif self.comm is not None:
            post(self.comm, leaving, arriving)()
        for side, (_, layers) in zip(sides, arriving, strict=True):
            found[side.block][side.face] = namespace(slabs[side.block][side.face]).asarray(layers)
        return found

    def _connection(self, arrays: Mapping[Name, Any]) -> Any:
        """NCCL, if each process has its arrays on a GPU of its own, as `connected` says; else None. All processes
        decide it together in their first exchange. Later their arrays must be on the same devices."""
        if self.comm is None:
            self._gpu_of(arrays)
            return None
        if self._decided is None:
            gpu = agreed(self.comm, lambda: self._gpu_of(arrays), named=True)
            self._decided = gpu, connected(self.comm, namespace(arrays[self.names[0]]), True)
        else:
            gpu = self._gpu_of(arrays)
        first, connection = self._decided
        if gpu != first:
            raise MatrixError(
                f"process {self.comm.rank} has its arrays on {_device(gpu)}, but had those of the first exchange on "
                f"{_device(first)}; move them there, or make another grid for them."
            )
        return connection

    def _gpu_of(self, arrays: Mapping[Name, Any]) -> int:
        """The GPU of all arrays of this process, as `gpu_of`; a DeviceError if they are on several devices, or on a GPU
        that is not the current one."""
        first = self.names[0]
        for name in self.names:
            require_one_device(arrays[first], arrays[name], f"the arrays of blocks {first!r} and {name!r}")
        return gpu_of(arrays[first])

    def __getstate__(self) -> dict[str, Any]:
        if self.comm is not None:
            raise ParameterError("a grid that is spread over processes cannot be pickled or copied.")
        return self.__dict__ | {"across": {}}  # made anew

    def __repr__(self) -> str:
        where = "" if self.comm is None else f", process {self.comm.rank} of {self.comm.size}"
        shapes = ", ".join(f"{name!r}: {' x '.join(map(str, shape))}" for name, shape in self.shapes.items())
        return f"MultiblockGrid({shapes}; {len(self.interfaces)} interfaces{where})"


def layers_at(array: Any, face: str, depth: int) -> Any:
    """A view of the `depth` layers of cells of (I, J, K, ...) next to a face: (depth, t1, t2, ...), outermost first."""
    across = namespace(array).moveaxis(array, AXES.index(face[0]), 0)
    return across[:depth] if face.endswith("-") else across[::-1][:depth]


def _back(layers: Any, face: str) -> Any:
    """Layers (depth, t1, t2, ...), the nearest first, as cells (I, J, K, ...) that continue beyond the face."""
    return namespace(layers).moveaxis(layers[::-1] if face.endswith("-") else layers, 0, AXES.index(face[0]))


def _device(gpu: int) -> str:
    return "the host" if gpu < 0 else f"GPU {gpu}"


def _checked_shapes(shapes: Any) -> dict[Name, tuple[int, int, int]]:
    found = {}
    for name, shape in shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes):
        cells = tuple(shape)
        if len(cells) != 3 or not all(isinstance(c, int | np.integer) and c > 0 for c in cells):
            raise MatrixError(f"block {name!r} has shape {shape!r}; three positive integers (I, J, K) are needed.")
        found[name] = (int(cells[0]), int(cells[1]), int(cells[2]))
    return found


def _listed(names: Mapping[Name, Any], most: int = 8) -> str:
    some = [repr(name) for name in list(names)[:most]]
    return ", ".join(some + (["..."] if len(names) > most else []))
