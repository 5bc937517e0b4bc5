"""The base class of all Krylov methods: their facts, the function that a caller calls, and their registry."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any, ClassVar, Protocol, TypeVar

from finelu.arithmetic import ignore_fp_errors, require_known
from finelu.device import namespace
from finelu.errors import NotConverged, ParameterError, meant
from finelu.krylov.batch import iterate_batch
from finelu.krylov.block import Block
from finelu.krylov.conventions import ARGUMENTS, Call, warn_of_callback
from finelu.krylov.loop import Callback, Loop, Watch
from finelu.krylov.nullspace import NullSpace
from finelu.krylov.recycle import RecycledSpace, space_asked
from finelu.krylov.solving import solved, solved_in_block, solved_together
from finelu.krylov.spread import alike, checked
from finelu.krylov.system import System, columns_of, guess_of
from finelu.matrix.batch import Batch
from finelu.matrix.vectors import norm
from finelu.registry import Registry
from finelu.result import Solution, of_columns
from finelu.validation import choice, flag, shown

NEEDS = {  # the property of A that a method needs, in words; "" for any nonsingular A
    "spd": "A = A^H",  # and positive definite, which the iteration tests
    "hermitian": "A = A^H",
    "symmetric": "A = A^H or A = A^T",
    "any": "",
}

RELATIVE_TO = ("b", "initial")

M = TypeVar("M", bound="type[Method]")


class Door(Protocol):
    """The function of a method: its arguments are those of `finelu.krylov` and, by name, the method's own."""

    __name__: str
    method: type[Method]

    def __call__(
        self,
        A: Any,
        b: Any,
        x0: Any = None,
        *,
        rtol: float = 1e-5,
        atol: float = 0.0,
        criterion: str = "auto",
        maxiter: int | None = None,
        M: Any = None,
        callback: Callback = None,
        watch: Watch = None,
        relative_to: str = "b",
        raise_on_failure: bool = False,
        nullspace: Any = None,
        **own: Any,
    ) -> Solution: ...


COMMON = tuple(signature(Door.__call__).parameters)[1:-1]  # the arguments of all methods, without self and own


class Method:
    """A Krylov method: its facts, and `iterate`; `solve(A, b, ...)` of a subclass is the function that is called.

    A subclass defines the static method `iterate(loop, **own)`: the iteration, built on the operations of `Loop`, with
    the method's own parameters as keywords. `solve` is made from it, with the arguments of `finelu.krylov`, the name of
    the method and the docstring of the class.

    The facts of a method are attributes of its class. All code that depends on them, such as the checks of
    `finelu.solve`, the gradients of interop and the choices of `finelu compare`, reads them here:
    name : the key in `METHODS`; by default the name of the class in small letters.
    needs : the property that A must have: "spd" (Hermitian positive definite), "hermitian", "symmetric" (A = A^H or
        A = A^T) or "any". M must be Hermitian positive definite for the first two, and symmetric as A is for the third.
    products : the number of products with A, or with A and A^H, per iteration, which `finelu.solve` expects to take
        the time. The tests verify it.
    restarts : whether the method works in cycles of `restart` iterations, a parameter of its own; x then exists only at
        the end of each cycle.
    stationary : whether the method forms r = b - A x itself in each iteration, see `Loop`.
    spread : whether A may be spread over processes, see `finelu.krylov.spread`.
    by_rows : whether the kernels that `iterate` calls have a form for several columns in rows, see `ColumnsInRows`.
    in_block : the function that iterates on several columns as one block, or None; `block`, a parameter of its own,
        then asks for that. It is called as `block_cg` is, with the method's other parameters by name; so a subclass
        that adds one defines it anew, or sets it to None.
    recycles : whether it takes a `RecycledSpace`, as `recycle`, a parameter of its own.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[str] = "any"
    products: ClassVar[int] = 1
    restarts: ClassVar[bool] = False
    stationary: ClassVar[bool] = False
    spread: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False
    in_block: ClassVar[Callable[..., Block] | None] = None
    recycles: ClassVar[bool] = False

    iterate: ClassVar[Callable[..., Solution]]
    solve: ClassVar[Door]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        if cls.needs not in NEEDS:
            raise ParameterError(f"{cls.__name__}: needs={cls.needs!r}; one of {', '.join(NEEDS)} is needed.")
        if not callable(getattr(cls, "iterate", None)):
            raise ParameterError(f"{cls.__name__} has no iterate(loop), the iteration of the method.")
        _require_own_parameters(cls)
        cls.solve = staticmethod(_door(cls))  # type: ignore[assignment]

    @classmethod
    def self_adjoint(cls) -> bool:
        """Whether A = A^H is needed, so that A^H x = b is solved as A x = b is."""
        return cls.needs in ("spd", "hermitian")

    @classmethod
    def together(cls, options: dict[str, Any]) -> bool:
        """Whether `iterate` with these parameters of its own runs on several right-hand sides at once, as `Columns`."""
        return False

    @classmethod
    def in_cycles(cls, restart: int) -> dict[str, Any]:
        """The keyword that makes cycles that long; {} for a method that does not restart."""
        return {"restart": restart} if cls.restarts else {}


METHODS: Registry[Method] = Registry(Method, "method", "finelu.methods", ("auto", "direct", "refinement"))


def register(kind: M) -> M:
    """Make a Krylov method known by its `name`, to `solve`, `compare` and the command line; returns it.

    Use it for a class of your program, as a decorator or as a function. An installed package names its methods in the
    entry-point group "finelu.methods" instead, and need not be imported: `hybridbicg = "package.module:HybridBiCG"`,
    where the class has the name "hybridbicg". `compare` works in a process of its own, which must be able to import the
    class.
    Raises ParameterError if `kind` is not a method, or if another method has its name.
    """
    known: M = METHODS.register(kind)
    return known


def method_name(given: Any, *others: str) -> str:
    """The key of METHODS, or the one of `others`, that `given` means: a name, a method's class, or its function.

    The method of an installed package is imported. Raises ParameterError for anything else, and for a class or function
    that is not registered.
    """
    if isinstance(given, str):
        name = given if given in others else METHODS.key(given, *others)
        return name if name in others else METHODS[name].name
    kind = getattr(given, "method", given)
    if isinstance(kind, type) and issubclass(kind, Method) and METHODS.get(kind.name) is kind:
        return kind.name
    raise ParameterError(
        f"there is no method {shown(given)}; one of {', '.join((*others, *METHODS))} is needed."
        + meant(getattr(given, "__name__", ""), METHODS)
    )


def _null_space(given: Any, system: System, method: type[Method]) -> NullSpace | None:
    if system.comm is not None:
        raise ParameterError("nullspace is not for an A that is spread over processes.")
    return NullSpace.of(given, system.A, system.b, hermitian=method.self_adjoint())


def _own(method: type[Method]) -> dict[str, Parameter]:
    """The parameters of a method in addition to the common ones."""
    return dict(list(signature(method.iterate).parameters.items())[1:])


def _require_own_parameters(method: type[Method]) -> None:
    """Raise ParameterError for parameters of `iterate` that the function of a method cannot have."""
    for name, parameter in _own(method).items():
        where = f"{method.__name__}.iterate(loop, {parameter})"
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise ParameterError(f"{where}: each parameter needs a name.")
        if parameter.default is Parameter.empty:
            raise ParameterError(f"{where}: {name} needs a default.")
        if name in COMMON:
            raise ParameterError(f"{where}: all methods have {name} already; give the parameter another name.")
    for fact, name in (("restarts", "restart"), ("in_block", "block"), ("recycles", "recycle")):
        if getattr(method, fact) and name not in _own(method):
            raise ParameterError(f"{method.__name__}: a method with {fact} needs the parameter {name}.")
    if (in_block := method.in_block) is None:
        return
    names = [name for name in _own(method) if name != "block"]
    where = f"{method.__name__}.in_block is called with (systems, starts, targets, maxiter) and, by name, "
    where += ", ".join(names) or "nothing"
    if not callable(in_block):
        raise ParameterError(f"{where}, but it is {in_block!r}; give a function, or None.")
    try:
        signature(in_block).bind(*[None] * 4, **dict.fromkeys(names))
    except TypeError as error:
        raise ParameterError(f"{where}: {error}; define it with these, or set in_block = None.") from None


def _door(method: type[Method]) -> Door:
    """The public function of `method`."""
    own = {name: parameter.replace(kind=Parameter.KEYWORD_ONLY) for name, parameter in _own(method).items()}
    of_scipy = ARGUMENTS.get(method.name, {})
    for name, default in of_scipy.items():
        own[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default)

    def solve(
        A: Any,
        b: Any,
        x0: Any = None,
        *,
        rtol: float = 1e-5,
        atol: float = 0.0,
        criterion: str = "auto",
        maxiter: int | None = None,
        M: Any = None,
        callback: Callback = None,
        watch: Watch = None,
        relative_to: str = "b",
        raise_on_failure: bool = False,
        nullspace: Any = None,
        **options: Any,
    ) -> Solution:
        if not options.keys() <= own.keys():
            require_known(solve, method.name, options)
        if isinstance(A, Batch):
            known = list(signature(solve).parameters.values())[2:]
            keywords = locals() | options
            asked = {p.name: (keywords.get(p.name, p.default), p.default) for p in known}
            return iterate_batch(method.name, A, b, asked)  # type: ignore[return-value]
        if type(relative_to) is not str or relative_to != "b":
            choice("relative_to", relative_to, RELATIVE_TO)
        if raise_on_failure is not False:
            flag("raise_on_failure", raise_on_failure)
        block = method.in_block is not None and options.get("block", False)
        if block is not False:
            flag("block", block)
            if block and options.get("recycle") is not None:
                raise ParameterError("block=True has no recycle; leave out one of them.")
        shape: tuple[int, ...] = getattr(b, "shape", None) or ()
        if len(shape) == 2 and shape[1] != 1:
            columns = range(shape[1])
            limits = {
                "rtol": rtol,
                "atol": atol,
                "criterion": criterion,
                "maxiter": maxiter,
                "relative_to": relative_to,
            }
            limits |= {"callback": callback, "watch": watch}
            if block and nullspace is not None:
                raise ParameterError("block=True is not for nullspace; leave out one of them.")
            if block and (unfit := options.keys() & of_scipy.keys()):
                raise ParameterError(f"block=True is not for {', '.join(sorted(unfit))}; leave out one of them.")
            apart = nullspace is not None or not options.keys().isdisjoint(of_scipy)
            spread = method.spread and getattr(A, "comm", None) is not None
            if apart or spread:
                if not spread:
                    b, x0 = columns_of(A, b, x0)
                limits |= {"nullspace": nullspace, "M": M, **options}
                every = [door(A, b[:, c], guess_of(x0, c), **limits) for c in columns]
            else:
                if method.in_block is not None:
                    options.pop("block", None)
                together = solved_in_block if block else solved_together
                every = together(method, System.of_columns(A, b, x0, M), **limits, **options)
            x = namespace(every[0].x).stack([s.x for s in every], axis=1)
            joined = of_columns(every, x, [norm(b[:, c]) for c in columns])
            if raise_on_failure and not joined.converged:
                raise NotConverged("A x = b", joined, rtol)
            return joined
        call = Call.taken(options, of_scipy) if of_scipy else None
        if callback is not None and "callback_type" in of_scipy and (call is None or call.callback_type is None):
            warn_of_callback()
        system = (checked if method.spread else System.checked)(A if call is None else call.matrix(A), b, x0, M)
        if call is not None:
            maxiter, callback, watch = call.arguments(system, maxiter, options.get("restart"), callback, watch)
        if system.comm is not None:
            limits = {
                "rtol": rtol,
                "atol": atol,
                "relative_to": relative_to,
                "maxiter": maxiter,
                "criterion": criterion,
            }
            callback, watch = alike(system, callback, watch, **limits)
        given = system
        space = None if nullspace is None else _null_space(nullspace, system, method)
        if space is not None:
            system = space.restricted(system)
            if (recycled := space_asked(options.get("recycle"))) is not None:
                recycled.leave_out(space.right)
        solution = solved(
            method,
            system,
            criterion=criterion,
            rtol=rtol,
            atol=atol,
            relative_to=relative_to,
            maxiter=maxiter,
            callback=callback,
            watch=watch,
            **options,
        )
        if space is not None:
            solution = space.completed(solution, system.A, system.b, given.b, rtol, atol)
        if call is not None:
            solution = call.result(solution)
        if raise_on_failure and not solution.converged:
            raise NotConverged("A x = b", solution, rtol)
        return solution

    common = [p for p in signature(solve).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    solve.__name__ = solve.__qualname__ = method.name
    solve.__module__, solve.__doc__ = method.__module__, cleandoc(method.__doc__ or "")
    solve.__signature__ = Signature([*common, *own.values()], return_annotation=Solution)  # type: ignore[attr-defined]
    door: Any = ignore_fp_errors(solve)
    door.__qualname__ = f"{method.__qualname__}.solve"  # where pickle finds it
    door.method = method
    return door  # type: ignore[no-any-return]


def iterate(
    method: str,
    system: System,
    *,
    rtol: float,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callback = None,
    watch: Watch = None,
    restart: int | None = None,
    recycle: RecycledSpace | None = None,
) -> Solution:
    """Run a method on a checked system, for callers that have checked their arguments and run under `ignore_fp_errors`.

    method : a key, as returned by `method_name`.  restart : iterations per cycle, if the method works in cycles.
    recycle : the space, if the method takes one.
    """
    kind = METHODS.registered[method]
    loop = Loop(kind, system, rtol=rtol, atol=atol, maxiter=maxiter, callback=callback, watch=watch)
    own: dict[str, Any] = {"restart": restart} if kind.restarts else {}
    return kind.iterate(loop, **own, **({"recycle": recycle} if kind.recycles else {}))
