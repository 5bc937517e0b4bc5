"""What BlockILU0 and BlockJacobi do alike with a grid, with a block matrix and with CSR: updates, precision, shift,
singular blocks. That each is its definition is tested in the files of the recipes."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import assert_close, one_line, refused, values
from stencil_cases import random_blocks

import finelu as fl
from finelu import BlockILU0, BlockJacobi, BlockMatrix, MatrixError, SingularBlock, StencilMatrix
from finelu.errors import NoFactors

SHAPE, N = (3, 2, 4), 3


def grid(backend, blocks):
    return StencilMatrix(backend.move(blocks))


def block_matrix(backend, blocks):
    B = BlockMatrix.from_bsr(StencilMatrix(blocks).to_bsr())
    return BlockMatrix(*(backend.move(v) for v in (B.data, B.indices, B.indptr)))


def csr(backend, blocks):
    return backend.move(sp.csr_matrix(StencilMatrix(blocks).tocsr()))


FORMS = {"grid": grid, "blocks": block_matrix, "csr": csr}
EACH = pytest.mark.parametrize(
    ("kind", "form"),
    [pytest.param(kind, form, id=f"{kind.__name__} {form}") for kind in (BlockILU0, BlockJacobi) for form in FORMS],
)


def factored(backend, kind, form, blocks, **options):
    """The matrix of these blocks in this form, and its factors."""
    A = FORMS[form](backend, blocks)
    return A, kind(**({"block_size": blocks.shape[-1]} if form == "csr" else {}), **options).factor(A)


def applied(backend, F):
    R = backend.move(values((F.shape[0], 2), "float64"))
    return [backend.fetch(F.solve(R, trans)) for trans in "NT"]


@EACH
def test_update_takes_new_values_and_keeps_its_memory(backend, kind, form):
    first, second = random_blocks(SHAPE, N), random_blocks(SHAPE, N, seed=7)
    A, F = factored(backend, kind, form, first)
    applied(backend, F)
    kept = {name: getattr(F, name) for name in ("d", "lu") if hasattr(F, name)}
    assert bool(kept) == (kind is BlockILU0)
    B, G = factored(backend, kind, form, second)
    assert F.update(B) is F and all(getattr(F, name) is array for name, array in kept.items())
    np.testing.assert_array_equal(applied(backend, F), applied(backend, G))
    F.update(A)
    np.testing.assert_array_equal(applied(backend, F), applied(backend, factored(backend, kind, form, first)[1]))
    name = "blocks" if form == "grid" else "data"
    stored, given = (backend.fetch(getattr(M, name)) for M in (A, FORMS[form](backend, first)))
    np.testing.assert_array_equal(stored, given)  # the caller's numbers are not written
    assert kind is BlockJacobi or F.report["numeric_seconds"] > 0
    assert kind is BlockJacobi or form != "grid" or F.report["hyperplanes"] == sum(SHAPE) - 2


@EACH
def test_after_a_failed_update_there_are_no_factors(backend, kind, form):
    blocks = random_blocks(SHAPE, N)
    A, F = factored(backend, kind, form, blocks)
    b, zero = backend.move(np.ones(F.shape[0])), backend.move(np.zeros_like(blocks))
    nothing = StencilMatrix(zero) if form == "grid" else A.with_values(0 * A.data) if form == "blocks" else 0 * A
    with pytest.raises(SingularBlock):
        F.update(nothing)
    for use in (lambda: F.solve(b), *((lambda: F.L, lambda: F.U) if hasattr(type(F), "L") else ())):
        with pytest.raises(NoFactors):
            use()
    F.update(A).solve(b)
    others = [random_blocks((3, 2, 5), N), *([random_blocks(SHAPE, 2)] if form != "csr" else [])]
    for other in [FORMS[form](backend, other) for other in others]:
        with refused(MatrixError, match=r"update needs (the (grid|block pattern|pattern)|a matrix of \d+ rows)"):
            F.update(other)
    with pytest.raises(MatrixError, match="complex"):
        F.update(FORMS[form](backend, blocks.astype("complex128")))


@EACH
def test_factors_in_single_precision_are_those_of_the_rounded_matrix(backend, kind, form):
    blocks = random_blocks(SHAPE, N)
    A, F = factored(backend, kind, form, blocks, precision="float32")
    _, G = factored(backend, kind, form, blocks.astype("float32"))
    assert F.dtype == "float32"
    np.testing.assert_array_equal(applied(backend, F), applied(backend, G))
    assert fl.gmres(A, backend.move(values(F.shape[0], "float64")), M=F, rtol=1e-12).converged


@EACH
def test_shift_moves_the_diagonal_and_makes_pivots_of_zeros(backend, kind, form):
    blocks = random_blocks(SHAPE, N)
    moved, zero = blocks.copy(), blocks.copy()
    moved[3][..., range(N), range(N)] *= 1.25
    S, want = factored(backend, kind, form, blocks, shift=0.25)[1], factored(backend, kind, form, moved)[1]
    for x, y in zip(applied(backend, S), applied(backend, want), strict=True):
        assert_close(x, y, 512)
    zero[3][..., 0, 0] = 0
    pivoting = {"pivoting": False} if kind is BlockILU0 else {}
    Z = factored(backend, kind, form, zero, shift=0.5, **pivoting)[1]  # a zero becomes a part of its row's largest
    assert np.isfinite(applied(backend, Z)).all()


@EACH
@pytest.mark.parametrize("pivoting", [False, True])
def test_a_singular_block_is_named_with_its_condition(backend, kind, form, pivoting):
    if kind is BlockJacobi and not pivoting:
        pytest.skip("BlockJacobi always exchanges rows")
    blocks = random_blocks((2, 2, 3), N)
    blocks[:3, 1, 0, 2] = 0  # so that nothing is subtracted from the block
    blocks[3, 1, 0, 2] = 1.0
    blocks[3, 1, 1, 0] = 0  # a later one
    where = r"cell \(1, 0, 2\)" if form == "grid" else "block row 8"
    options = {"pivoting": pivoting} if kind is BlockILU0 else {}
    with pytest.raises(SingularBlock, match=rf"{where} \(from row {8 * N} on\), of condition") as error:
        factored(backend, kind, form, blocks, **options)
    assert error.value.row == 8 * N and error.value.condition > 1e15
    assert error.value.cell == ((1, 0, 2) if form == "grid" else 8)
    assert one_line(error).startswith(f"{kind.__name__}(")
