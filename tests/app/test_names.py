"""Names of recipes, methods and values: understood as meant, or answered with what to type."""

import numpy as np
import pytest
from checks import one_line

import finelu as fl
from finelu.cli import main
from finelu.compare import compare
from finelu.errors import meant
from finelu.preconditioners import RECIPES, recipe_name, recipe_of

A = fl.gallery.problem("poisson7:8")
b = np.ones(A.shape[0])


@pytest.mark.parametrize("key", RECIPES)
def test_a_recipe_is_known_by_its_names(key):
    kind = RECIPES[key]
    for name in (key, key.upper(), kind.__name__, kind.__name__.lower(), key.replace("_", "-")):
        assert recipe_name(name) == key
        assert recipe_of(name) == kind()
    assert recipe_of(kind) == kind()


@pytest.mark.parametrize("recipe", ["ILU0", "ilu0", fl.ILU0, fl.ILU0()])
def test_solve_takes_a_recipe_however_it_is_meant(recipe):
    solution = fl.solve(A, b, recipe=recipe)
    assert solution.converged and solution.recipe == "ILU0()"
    steps = fl.Sequence(A, recipe=recipe)
    assert steps.step(b=b).recipe == "ILU0()"


@pytest.mark.parametrize("method", ["GMRES", "gmres", fl.gmres])
def test_solve_takes_a_method_however_it_is_meant(method):
    assert fl.solve(A, b, recipe="ilu0", method=method).method == "gmres"


def test_no_recipe_and_any_recipe_are_names_too():
    assert fl.solve(A, b, recipe="None").recipe == fl.solve(A, b, recipe=None).recipe == "no preconditioner"
    assert fl.solve(A, b, recipe="AUTO", method="Auto").converged


F = fl.ILU0().factor(A)
WRONG = {
    "a recipe as M": (lambda: fl.gmres(A, b, M=fl.ILU0(shift=0.1)), r"M=finelu\.ILU0\(shift=0\.1\)\.factor\(A\)"),
    "a class as M": (lambda: fl.cg(A, b, M=fl.IC0), r"M is the recipe IC0\(\), .* M=finelu\.IC0\(\)\.factor\(A\)"),
    "a name as M": (lambda: fl.bicg(A, b, M="ilut"), r"M=finelu\.ILUT\(\)\.factor\(A\)"),
    "a misspelt name as M": (lambda: fl.cg(A, b, M="ilot"), "Did you mean 'ilut'"),
    "a class that is no recipe as M": (lambda: fl.cg(A, b, M=int), "M is the class, <class 'int'>"),
    "factors as a recipe": (lambda: fl.solve(A, b, recipe=F), r"made already; .* gmres\(A, b, M=F\)"),
    "a number as a recipe": (lambda: fl.solve(A, b, recipe=3), "recipe is of type int; .*ilu0"),
    "an array as a recipe": (lambda: fl.solve(A, b, recipe=b), "recipe is of type ndarray"),
    "a misspelt recipe": (lambda: fl.solve(A, b, recipe="multilevle"), "Did you mean 'multilevel'"),
    "a misspelt recipe in steps": (lambda: fl.Sequence(recipe="sparselo"), "Did you mean 'sparse_lu'"),
    "a misspelt method": (lambda: fl.solve(A, b, method="bicgstb"), "Did you mean 'bicgstab'"),
    "an array as a method": (lambda: fl.solve(A, b, method=b), "there is no method"),
    "a misspelt device": (lambda: fl.solve(A, b, device="cdua"), "Did you mean 'cuda'"),
    "ordering": (lambda: fl.MultilevelILU(ordering="rmc").factor(A), "Did you mean 'rcm'"),
    "ordering of the direct solve": (lambda: fl.SparseLU(ordering="colmad").factor(A), "Did you mean 'colamd'"),
    "ordering of sweeps": (lambda: fl.ParILU(ordering="rmc").factor(A), "Did you mean 'rcm'"),
    "triangular": (lambda: fl.ILU0(triangular="levles").factor(A), "Did you mean 'levels'"),
    "variant": (lambda: fl.ILU0(variant="sequentail").factor(A), "Did you mean 'sequential'"),
    "variant of MILU0": (lambda: fl.MILU0(variant="sequentail").factor(A), "Did you mean 'sequential'"),
    "form": (lambda: fl.ILUT(form="crut").factor(A), "Did you mean 'crout'"),
    "orthogonalization": (lambda: fl.gmres(A, b, orthogonalization="msg"), "Did you mean 'mgs'"),
    "permc_spec": (lambda: fl.spilu(A, permc_spec="MMD_AT_PLUS"), "Did you mean 'MMD_AT_PLUS_A'"),
    "a problem": (lambda: fl.gallery.problem("poison7:4"), "Did you mean 'poisson7'"),
    "a recipe to compare": (lambda: compare(A, b, recipes=["ilutt"]), "Did you mean 'ilut'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_known_is_answered_with_what_to_type(what):
    call, match = WRONG[what]
    with pytest.raises(fl.MatrixError if what.endswith("as M") else fl.ParameterError, match=match) as error:
        call()
    one_line(error)


@pytest.mark.parametrize("wrong", [fl.ILU0(), fl.ILU0, "A.mtx"])
def test_a_recipe_is_no_matrix(wrong):
    for call in (lambda: fl.cg(wrong, b), lambda: fl.solve(wrong, b), lambda: fl.ILU0().factor(wrong)):
        with pytest.raises(fl.MatrixError, match="A is a"):
            call()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: fl.solve(None, b), "A is a NoneType; a sparse matrix"),
        (lambda: fl.solve(fl.solve(A, b), b), "A is a Solution, which .*use solution.x"),
        (lambda: fl.ILU0().factor(None), "A is a NoneType; a sparse matrix"),
        (lambda: fl.solve(A, None), "b has dtype object, of a NoneType; numbers"),
        (lambda: fl.solve(A, fl.solve(A, b)), "b is a Solution, which .*use solution.x"),
        (lambda: fl.cg(A, "b"), "b has dtype .*, of a str; numbers"),
    ],
)
def test_what_is_no_array_is_named_by_its_type(call, match):
    with pytest.raises(fl.MatrixError, match=match) as error:
        call()
    one_line(error)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--recipe", "ilot"), "Did you mean 'ilut'"),
        (("--method", "gmrse"), "Did you mean 'gmres'"),
        (("--recipe", "ilut", "--set", "drop_tl=1e-3"), "Did you mean 'drop_tol'"),
        (("--recipe", "multilevel", "--set", "ordering=rmc"), "Did you mean 'rcm'"),
    ],
)
def test_the_command_line_says_what_may_be_meant(capsys, options, match):
    assert main(["solve", "gallery:poisson7:4", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and match in err


def test_the_command_line_knows_recipes_and_methods_by_their_names(capsys):
    assert (
        main(["solve", "gallery:poisson7:4", "--recipe", "BlockJacobi", "--set", "block_size=4", "--method", "CG"]) == 0
    )
    assert "BlockJacobi(block_size=4)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: fl.solve(A, b, device="gpu"), "Did you mean 'cuda'"),
        (lambda: compare(A, b, device="GPU"), "Did you mean 'cuda'"),
        (lambda: recipe_name("ILU"), "Did you mean 'ilu0', 'iluk' or 'ilut'"),
        (lambda: recipe_name("block"), "Did you mean 'block_jacobi' or 'block_ilu0'"),
        (lambda: fl.Market, "no attribute 'Market'.$"),
        (lambda: fl.xyzzy, "no attribute 'xyzzy'.$"),
        (lambda: fl.gmrse, "Did you mean 'gmres'"),
    ],
)
def test_what_is_suggested_is_near_to_what_was_typed(call, match):
    with pytest.raises((fl.ParameterError, AttributeError), match=match):
        call()


@pytest.mark.parametrize("recipes", ["ilu0", "ILU0", fl.ILU0, fl.ILU0(), [fl.ILU0], ["ilu0", fl.ILU0()]])
def test_one_recipe_is_compared_however_it_is_meant(recipes):
    from finelu.compare.choose import requested_names

    assert requested_names(recipes) == ["ilu0"]


@pytest.mark.parametrize("recipes", [3, fl.ILU0(shift=0.1), [fl.ILU0(shift=0.1)], [3], b])
def test_what_cannot_be_compared_is_said(recipes):
    with pytest.raises(fl.ParameterError) as error:
        compare(A, b, recipes=recipes)
    one_line(error)


@pytest.mark.parametrize("word", [None, 3, b"ilu0", "", "quite another thing"])
def test_what_resembles_nothing_is_given_no_advice(word):
    assert meant(word, RECIPES) == ""


def test_factor_is_of_a_recipe():
    with pytest.raises(AttributeError, match=r"finelu.SparseLU\(\).factor\(A\)") as error:
        fl.factor  # noqa: B018
    assert "Did you mean" not in str(error.value)
