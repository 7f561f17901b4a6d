"""Arguments, results and errors of grad, vjp, jvp and Jacobians. torch.func is the oracle."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime.func
from runtime.autograd import Function, forward_ad
from runtime.func import grad, grad_and_value, jacfwd, jacrev, jvp, vjp, vmap

from ..errors import told

X, Y = torch.tensor([0.5, 1.5, 2.5]), torch.tensor([2.0, -1.0, 3.0])
C = torch.tensor([1.0 + 2j, 3.0 - 1j, 0.5j])


def outcome(call: Callable[[Any], Any], lib: Any) -> Any:
    """What ``call(lib)`` gives, or its error."""
    try:
        return call(lib)
    except Exception as e:
        return told(e)


def as_torch(call: Callable[[Any], Any]) -> Any:
    """``call`` has the same outcome with runtime.func as with torch.func; returns it."""
    ours, theirs = outcome(call, runtime.func), outcome(call, torch.func)
    if isinstance(theirs, tuple) and isinstance(theirs[0], str):
        assert ours == theirs
    else:
        torch.testing.assert_close(ours, theirs)
    return ours


def f(a: Any, b: Any) -> Any:
    return (a * a * b).sum()


@pytest.mark.parametrize("transform", ["grad", "grad_and_value", "jacrev", "jacfwd", "hessian"])
@pytest.mark.parametrize("argnums", [0, 1, -1, -2, (0,), (1,), (-1,), (1, 0), (-1, -2), (0, -1)])
def test_argnums_count_from_either_end_and_a_tuple_gives_a_tuple(
    transform: str, argnums: Any
) -> None:
    # torch's jacfwd is wrong from the end
    from_the_front = tuple(i % 2 for i in argnums) if isinstance(argnums, tuple) else argnums % 2
    expected = getattr(torch.func, transform)(f, from_the_front)(X, Y)
    torch.testing.assert_close(getattr(runtime.func, transform)(f, argnums)(X, Y), expected)


@pytest.mark.parametrize("transform", ["grad", "jacrev", "jacfwd"])
@pytest.mark.parametrize(
    "argnums", [2, -3, (0, 2), (0, -3), (0, 0), (0, -2), (), "a", 1.0, (0, "a"), [0]]
)
def test_argnums_that_name_no_argument_or_one_twice_are_refused(
    transform: str, argnums: Any
) -> None:
    found = as_torch(lambda lib: getattr(lib, transform)(f, argnums)(X, Y))
    assert found[0] == "RuntimeError" and "argnum" in found[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: (x.sum(), 1),
        lambda x: 3.0,
        lambda x: x[:1],
        lambda x: x.sum() * 1j,
        lambda x: [x.sum()],
    ],
)
@pytest.mark.parametrize("has_aux", [False, True])
def test_grad_needs_one_real_number(function: Any, has_aux: bool) -> None:
    run: Any = (lambda x: (function(x), x)) if has_aux else function
    assert as_torch(lambda lib: lib.grad_and_value(run, has_aux=has_aux)(X))[0] == "RuntimeError"


@pytest.mark.parametrize(
    "output",
    [lambda x: x.sum(), lambda x: (x.sum(),), lambda x: (x.sum(), x, x), lambda x: [x.sum(), x]],
)
@pytest.mark.parametrize(
    "transform",
    [
        lambda lib, f: lib.vjp(f, X, has_aux=True)[2],
        lambda lib, f: lib.grad(f, has_aux=True)(X),
        lambda lib, f: lib.jvp(f, (X,), (X,), has_aux=True),
    ],
)
def test_aux_is_the_second_of_a_pair(transform: Any, output: Any) -> None:
    assert as_torch(lambda lib: transform(lib, output))[0] == "RuntimeError"


@pytest.mark.parametrize("argument", [3.0, "x", [X, 1.0], torch.tensor([1, 2])])
def test_what_is_differentiated_must_be_tensors_of_floating_point(argument: Any) -> None:
    transforms: list[Any] = [
        lambda lib: lib.grad(lambda x: torch.ones(()))(argument),
        lambda lib: lib.vjp(lambda x: torch.ones(()), argument),
        lambda lib: lib.jvp(lambda x: torch.ones(()), (argument,), (argument,)),
    ]
    for transform in transforms:
        assert as_torch(transform)[0] in ("RuntimeError", "ValueError")


@pytest.mark.parametrize(
    "output",
    [
        lambda x: (),
        lambda x: None,
        lambda x: [],
        lambda x: {"a": 3},
        lambda x: (x, None),
        lambda x: (x, "word"),
    ],
)
def test_the_outputs_must_be_tensors_at_least_one(output: Any) -> None:
    transforms: list[Any] = [
        lambda lib: lib.vjp(output, X),
        lambda lib: lib.jvp(output, (X,), (X,)),
        lambda lib: lib.jacrev(output)(X),
        lambda lib: lib.jacfwd(output)(X),
    ]
    for transform in transforms:
        assert as_torch(transform)[0] == "RuntimeError"


@pytest.mark.parametrize(
    "transform",
    [
        lambda lib, f: lib.grad(lambda x: f(x).sum())(X),
        lambda lib, f: lib.vjp(f, X)[1](Y),
        lambda lib, f: lib.jvp(f, (X,), (X,)),
        lambda lib, f: lib.jacrev(f)(X),
        lambda lib, f: lib.jacfwd(f)(X),
        # of the outer transform alone
        lambda lib, f: lib.grad(lambda y: lib.grad(lambda x: f(y).sum())(X).sum())(Y),
        lambda lib, f: lib.jvp(lambda y: lib.jvp(lambda x: f(y), (X,), (X,))[1], (Y,), (Y,)),
    ],
)
@pytest.mark.parametrize(
    "function", [lambda x: Y.clone(), lambda x: x.detach() * 2, lambda x: torch.zeros_like(x)]
)
def test_what_does_not_depend_on_the_argument_has_a_derivative_of_zeros(
    transform: Any, function: Any
) -> None:
    as_torch(lambda lib: transform(lib, function))


def test_an_output_of_the_outer_transform_is_a_constant_of_the_inner_one() -> None:
    def outer(y: Any) -> Any:
        gradient = grad(lambda x: (y * y).sum())(X)
        tangent = jvp(lambda x: y * y, (X,), (X,))[1]
        _, pull = vjp(lambda x: y * y, X)
        return (y * y).sum() + gradient.sum() + tangent.sum() + pull(X)[0].sum()

    torch.testing.assert_close(grad(outer)(Y), 2 * Y)


class TestPullback:
    @pytest.mark.parametrize(
        "cotangent",
        [Y[:2], Y.reshape(3, 1), (Y,), [Y], {"a": Y}, 1.0, "x", torch.ones(()), C],
        ids=["short", "column", "tuple", "list", "dict", "number", "word", "scalar", "complex"],
    )
    def test_takes_what_is_like_the_output(self, cotangent: Any) -> None:
        ours = outcome(lambda lib: lib.vjp(torch.sin, X)[1](cotangent), runtime.func)
        assert ours[0] in ("RuntimeError", "TypeError"), ours
        if isinstance(cotangent, torch.Tensor | tuple | list | dict):
            assert ours == outcome(lambda lib: lib.vjp(torch.sin, X)[1](cotangent), torch.func)

    def test_a_real_cotangent_of_a_complex_output_is_refused_as_in_torch(self) -> None:
        assert (
            "required to have the same dtype"
            in as_torch(lambda lib: lib.vjp(torch.sin, C)[1](X))[1]
        )
        as_torch(lambda lib: lib.vjp(torch.sin, C)[1](C))

    def test_may_be_called_again_unless_told_otherwise(self) -> None:
        _, pull = vjp(torch.sin, X)
        torch.testing.assert_close(pull(Y), pull(Y))
        torch.testing.assert_close(pull(Y, retain_graph=False), (Y * X.cos(),))
        with pytest.raises(RuntimeError, match="a second time"):
            pull(Y)

    def test_gives_the_structure_of_the_primals(self) -> None:
        _, pull = vjp(lambda a, tree: a * tree["b"][0], X, {"b": [Y]})
        torch.testing.assert_close(pull(torch.ones(3)), (Y, {"b": [X]}))

    def test_takes_cotangents_of_another_batch(self) -> None:
        _, pull = vjp(torch.sin, X)
        torch.testing.assert_close(vmap(pull)(torch.eye(3))[0], X.cos().diag())


def test_aux_is_of_the_level_outside() -> None:
    _, _, aux = vjp(lambda x: (x, {"twice": 2 * x}), X, has_aux=True)
    assert type(aux["twice"]) is torch.Tensor
    *_, aux = jvp(lambda x: (x, [2 * x]), (X,), (X,), has_aux=True)
    assert type(aux[0]) is torch.Tensor
    found = grad(lambda y: grad(lambda x: (x.sum(), (y * x).sum()), has_aux=True)(X)[1])(Y)
    # aux has no history at the inner level, and one at the outer
    torch.testing.assert_close(found, X)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_function_runs_with_grad_mode_on_and_leaves_it_as_it_was(
    enabled: bool, fails: bool
) -> None:
    seen = []

    def function(x: Any) -> Any:
        seen.append(torch.is_grad_enabled())
        if fails:
            raise KeyError
        return x.sum()

    with torch.set_grad_enabled(enabled):
        runs: list[Any] = [lambda lib: lib.grad(function)(X), lambda lib: lib.vjp(function, X)]
        for run in runs:
            outcome(run, runtime.func)
            assert torch.is_grad_enabled() is enabled
    assert seen == [True, True]


def test_the_value_and_its_gradient_are_plain() -> None:
    gradient, value = grad_and_value(f, 1)(X, Y)
    assert type(gradient) is type(value) is torch.Tensor and not value.requires_grad
    torch.testing.assert_close((gradient, value), (X * X, f(X, Y)))


def test_torch_records_nothing_in_a_pass_and_goes_on_recording_after_it() -> None:
    parameter = torch.nn.Parameter(Y.clone())
    found = grad(lambda x: (x * x * parameter).sum())(X)
    assert not found.requires_grad
    with pytest.raises(ZeroDivisionError):
        grad(lambda x: _Fails.apply(x).sum())(X)
    (parameter * X).sum().backward()
    torch.testing.assert_close(parameter.grad, X)


class _Fails(runtime.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        raise ZeroDivisionError


class TestJvp:
    @pytest.mark.parametrize(
        ("primals", "tangents"),
        [
            (X, X),
            ([X], [X]),
            ((X,), X),
            ((X,), [X]),
            ((X,), (X, X)),
            ((), ()),
            ((X,), (X[:2],)),
            ((X, 1.0), (X, 1.0)),
            ((X,), (1.0,)),
            ((torch.tensor([1]),), (torch.tensor([1]),)),
            ((X,), (torch.tensor([1, 2, 3]),)),
            (({"a": X},), ({"b": X},)),
        ],
    )
    def test_primals_and_tangents_must_match(self, primals: Any, tangents: Any) -> None:
        found = outcome(lambda lib: lib.jvp(lambda *x: X * 1, primals, tangents), runtime.func)
        theirs = outcome(lambda lib: lib.jvp(lambda *x: X * 1, primals, tangents), torch.func)
        assert found[0] == theirs[0] in ("RuntimeError", "ValueError")

    def test_strict_refuses_what_does_not_depend_on_the_primals(self) -> None:
        assert (
            "independent"
            in as_torch(lambda lib: lib.jvp(lambda x: Y.clone(), (X,), (X,), strict=True))[1]
        )
        assert (
            "independent"
            in as_torch(lambda lib: lib.jvp(lambda x: (x, Y.clone()), (X,), (X,), strict=True))[1]
        )
        as_torch(lambda lib: lib.jvp(torch.sin, (X,), (X,), strict=True))

    def test_what_is_detached_in_place_is_a_constant(self) -> None:
        as_torch(lambda lib: lib.jvp(lambda x: (x * x).detach_() * x, (X,), (Y,)))
        as_torch(lambda lib: lib.grad(lambda x: ((x * x).detach_() * x).sum())(X))

    def test_trees_go_in_and_out(self) -> None:
        as_torch(
            lambda lib: lib.jvp(
                lambda a, t: {"p": a * t["b"], "q": [a]}, (X, {"b": Y}), (Y, {"b": X})
            )
        )


class TestJacobians:
    def test_of_several_inputs_and_outputs_of_different_shapes(self) -> None:
        def g(a: Any, tree: Any) -> Any:
            b = tree["b"]
            return {"outer": a[:, None] * b, "sum": (a.sum(), b[0])}

        inputs = X, {"b": torch.tensor([[1.0, 2.0]])}
        for argnums in (0, 1, (0, 1), (1,)):
            expected = torch.func.jacrev(g, argnums)(*inputs)
            for chunk_size in (None, 1, 2, 100):
                torch.testing.assert_close(
                    jacrev(g, argnums, chunk_size=chunk_size)(*inputs), expected
                )
                torch.testing.assert_close(
                    jacfwd(g, argnums, chunk_size=chunk_size)(*inputs), expected
                )

    @pytest.mark.parametrize("chunk_size", [0, -1, "a", 1.5])
    def test_chunks_have_at_least_one_row(self, chunk_size: Any) -> None:
        with pytest.raises(ValueError, match="`chunk_size` should be greater than 0"):
            jacrev(torch.sin, chunk_size=chunk_size)

    @pytest.mark.parametrize("transform", ["jacrev", "jacfwd"])
    def test_complex_numbers_are_refused_by_their_place(self, transform: str) -> None:
        found = as_torch(lambda lib: getattr(lib, transform)(lambda a, b: a * b.real, (0, 1))(X, C))
        assert "inputs to be real" in found[1] and found[1].endswith("idx: 1")
        found = as_torch(lambda lib: getattr(lib, transform)(lambda a: (a, a * 1j))(X))
        assert "outputs to be real" in found[1] and found[1].endswith("idx: 1")

    def test_keyword_arguments_are_constants(self) -> None:
        def g(a: Any, *, b: Any) -> Any:
            return a * b

        for transform in (jacrev, jacfwd):
            torch.testing.assert_close(transform(g)(X, b=Y), Y.diag())

    @pytest.mark.parametrize("randomness", ["same", "different"])
    def test_randomness_is_that_of_the_batch_of_tangents(self, randomness: str) -> None:
        jacobian = jacfwd(lambda x: x * torch.rand(3), randomness=randomness)(torch.ones(3))
        columns = jacobian.diagonal()
        assert jacobian.count_nonzero() == 3 and len(columns.unique()) == 3
        with pytest.raises(RuntimeError, match="randomness"):
            jacfwd(lambda x: x * torch.rand(3))(X)

    def test_aux_is_that_of_one_run(self) -> None:
        derivative, (aux, constant) = jacfwd(lambda x: (x * x, (2 * x, Y)), has_aux=True)(X)
        torch.testing.assert_close((derivative, aux, constant), ((2 * X).diag(), 2 * X, Y))
        derivative, (aux, constant) = jacrev(lambda x: (x * x, (2 * x, Y)), has_aux=True)(X)
        torch.testing.assert_close((derivative, aux, constant), ((2 * X).diag(), 2 * X, Y))


def test_outputs_of_vjp_are_of_floating_point_and_cotangents_may_be_none() -> None:
    assert (
        "floating-point or complex"
        in as_torch(lambda lib: lib.vjp(lambda x: (x, x.argmax()), X))[1]
    )
    _, pull = vjp(lambda x: (x.sin(), x * 2), X)
    torch.testing.assert_close(pull((None, Y)), (2 * Y,))
    torch.testing.assert_close(pull((Y, None)), (X.cos() * Y,))
    torch.testing.assert_close(pull((None, None)), (torch.zeros(3),))


@pytest.mark.parametrize("transform", ["grad", "jacrev", "jacfwd", "hessian"])
def test_a_function_without_arguments_has_no_derivative(transform: str) -> None:
    for argnums in (0, -1):
        with pytest.raises(
            RuntimeError, match=f"Got argnum={argnums}, but only 0 positional inputs"
        ):
            getattr(runtime.func, transform)(lambda: X.sum(), argnums)()


@pytest.mark.parametrize("tangent", [torch.ones(()), X[:1], X[None], X.expand(2, 3)])
def test_a_tangent_is_not_broadcast_to_its_primal(tangent: Any) -> None:
    assert "different size" in as_torch(lambda lib: lib.jvp(torch.sin, (X,), (tangent,)))[1]


def test_complex_numbers_have_derivatives_too() -> None:
    as_torch(lambda lib: lib.grad(lambda z: (z * z.conj() * z).abs().sum())(C))
    as_torch(lambda lib: lib.vjp(lambda z: z * z, C)[1](C.conj()))
    as_torch(lambda lib: lib.jvp(lambda z: (z * z, z.abs()), (C,), (C.conj(),)))
    as_torch(lambda lib: lib.jvp(lambda z: z * X, (C,), (X,)))


def test_an_input_that_plays_no_part_has_a_gradient_of_zeros_beside_one_that_does() -> None:
    as_torch(lambda lib: lib.grad(lambda a, b: (a * a).sum(), (0, 1))(X, Y))
    as_torch(
        lambda lib: lib.vjp(lambda tree: {"a": tree["a"] * 2, "c": Y}, {"a": X, "b": Y})[1](
            {"a": Y, "c": X}
        )
    )


class TestMarksOfTorchsOwnEngine:
    """A result computed from a plain tensor that requires grad by torch's engine says so when all
    leaves are to get their gradients."""

    @pytest.mark.parametrize(
        "run",
        [
            lambda w, p: vmap(lambda x: x * p)(w),
            lambda w, p: vmap(lambda x: (x, x * p))(w)[1],
            lambda w, p: vmap(grad(lambda x: (x * x * p).sum()))(w[None])[0],
            lambda w, p: vmap(lambda x: vjp(lambda x: x * x * p, x)[1](Y)[0], out_dims=1)(w[None]),
            lambda w, p: vmap(lambda x: jvp(lambda x: x * x * p, (x,), (Y,))[1])(w[None]),
            lambda w, p: grad(lambda x: (x * x * p).sum())(w),
            lambda w, p: grad_and_value(lambda x: (x * p).sum())(w)[1],
            lambda w, p: vjp(lambda x: x * p, w)[0],
            lambda w, p: vjp(lambda x: x * x * p, w)[1](Y)[0],
            lambda w, p: jvp(lambda x: x * p, (w,), (Y,))[0],
            lambda w, p: jvp(lambda x: x * x * p, (w,), (Y,))[1],
        ],
    )
    def test_it_passes_through_every_transform(self, run: Any) -> None:
        leaf = runtime.wrap(X.clone(), True)
        with pytest.raises(
            RuntimeError,
            match="was computed from a plain torch tensor that requires grad by torch's own engine",
        ):
            run(leaf, torch.nn.Parameter(Y.clone())).sum().backward()
        run(leaf, Y.clone()).sum().backward()
        assert leaf.grad is not None


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: grad(f)(x),
        lambda f, x: jvp(f, (x,), (x,)),
        lambda f, x: vjp(f, x),
        lambda f, x: vmap(f)(x),
    ],
)
def test_nested_tensors_are_no_arguments_of_transforms(transform: Any) -> None:
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(2)], layout=torch.jagged)
    with pytest.raises((RuntimeError, NotImplementedError), match="nested"):
        transform(lambda x: x * 2, x)


class Keeps(Function):
    """Twice its argument. It saves a tensor of its own, which ``saved`` has a reference to."""

    saved: weakref.ref[torch.Tensor]

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        kept = torch.ones(3)
        Keeps.saved = weakref.ref(kept)
        ctx.save_for_backward(kept)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2 * ctx.saved_tensors[0]


class Asks(Function):
    """Its argument. Its backward pass asks whether what :class:`Keeps` has saved is still there."""

    there: bool

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        Asks.there = Keeps.saved() is not None
        return g * 1


@pytest.mark.parametrize("what", ["grad", "a pullback that is called once", "a pullback"])
def test_a_pass_frees_what_it_has_used_if_it_is_the_last_one(
    what: str, without_collector: None
) -> None:
    def f(x: Any) -> Any:
        return Keeps.apply(Asks.apply(x)).sum()

    if what == "grad":
        found = grad(f)(X)
    else:
        _, pull = vjp(f, X)
        (found,) = pull(torch.ones(()), retain_graph=what == "a pullback")
    assert Asks.there is (what == "a pullback") and found.tolist() == [2.0, 2.0, 2.0]


AS_A_NUMBER: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "a factor": lambda x, y: torch.add(x, x, alpha=y),
    "a slope": lambda x, y: torch.nn.functional.leaky_relu(x, y),
    "a bound": lambda x, y: torch.nn.functional.hardtanh(x, -1.0, y),
    "elements": lambda x, y: torch.full((2,), y) + x,
    "a summand of a list": lambda x, y: torch._foreach_add([x], y)[0],
}


@pytest.mark.parametrize("name", AS_A_NUMBER)
def test_a_tensor_with_a_derivative_is_no_number_for_a_function_of_torch(name: str) -> None:
    function, x = AS_A_NUMBER[name], torch.tensor([-1.0, 2.0])
    y, refusal = torch.tensor(3.0), "takes a number here.*would be lost"
    expected = function(x, 3.0)
    for transform in (jacrev, jacfwd):
        with pytest.raises(TypeError, match=refusal):
            transform(lambda y: function(x, y))(y)
        # a number that the program reads is a constant, and so is a tensor without a derivative
        assert not transform(lambda y: function(x, float(y)))(y).any()
        assert not transform(lambda y: function(x, y.item()))(y).any()
        torch.testing.assert_close(transform(lambda x: function(x, y))(x).shape, (2, 2))
    torch.testing.assert_close(vjp(lambda x: function(x, y), x)[0], expected)
    leaf = runtime.wrap(y, requires_grad=True)
    with pytest.raises(TypeError, match=refusal):
        function(x, leaf)
    with torch.no_grad():
        torch.testing.assert_close(runtime.unwrap(function(x, leaf)), expected)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y, torch.tensor(1.0))
        with pytest.raises(TypeError, match=refusal):
            function(x, dual)
        primal = forward_ad.unpack_dual(dual).primal
        torch.testing.assert_close(runtime.unwrap(function(x, primal)), expected)


@pytest.mark.parametrize("name", AS_A_NUMBER)
def test_a_number_that_a_batch_agrees_on_has_a_derivative_that_would_be_lost(name: str) -> None:
    function, x = AS_A_NUMBER[name], torch.tensor([-1.0, 2.0])
    batch = torch.tensor([3.0, 3.0])
    mapped = vmap(lambda y: function(x, y))
    torch.testing.assert_close(mapped(batch), torch.stack([function(x, 3.0)] * 2))
    for transform in (jacrev, jacfwd):
        with pytest.raises(TypeError, match=r"takes a number here.*would be lost"):
            transform(mapped)(batch)
        assert not transform(vmap(lambda y: function(x, float(y))))(batch).any()
        # what a program branches on is a constant, too
        assert transform(vmap(lambda y: y * 2 if y else y))(batch).sum() == 4
