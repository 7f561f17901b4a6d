"""``linear``, ``matmul`` and ``layer_norm`` are recorded as what ATen composes them of. Torch's
engine on the same values is the oracle."""

import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm, linear
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime.autograd import forward_ad
from runtime.autograd.graph import saved_tensors_hooks
from tests.runtime.of_torch import END_OF_A_LINEAR_LAYER

from ..view_scenarios import OURS, TORCH, gradients, name, outcome, same

SHAPES = [(5, 3), (2, 5, 3), (2, 2, 5, 3), (3,), (0, 3), (2, 0, 3), (1, 1, 3)]


def layer(
    lib: Any, shape: tuple[int, ...], wanted: tuple[bool, ...] = (True, True, True)
) -> list[Any]:
    """An input of ``shape``, a weight (4, 3) and a bias (4), of which those that are
    ``wanted`` require grad."""
    found = [lib.leaf(*s) / 8 for s in (shape, (4, 3), (4,))]
    return [
        t.detach().requires_grad_() if w else t.detach() for t, w in zip(found, wanted, strict=True)
    ]


def history(t: Any) -> Any:
    """The graph behind a tensor as nested names, in the order of its edges. ATen's ``reshape``
    views a tensor subclass with ``view``."""

    def of(node: Any) -> Any:
        return (
            None
            if node is None
            else (
                node.name().replace("ReshapeAlias", "View"),
                [(of(n), i) for n, i in node.next_functions],
            )
        )

    return of(t.grad_fn)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("wanted", [w for w in product((True, False), repeat=3) if any(w)], ids=str)
def test_graph_and_gradients_are_those_of_the_parts(
    shape: tuple[int, ...], wanted: tuple[bool, ...]
) -> None:
    def scenario(lib: Any) -> Any:
        args = layer(lib, shape, wanted)
        y = linear(*args)
        return (
            y,
            history(y),
            gradients(lib, y * y, *(a for a, w in zip(args, wanted, strict=True) if w)),
        )

    same(scenario)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
def test_without_a_bias_too(shape: tuple[int, ...], wanted: tuple[bool, bool]) -> None:
    def scenario(lib: Any) -> Any:
        x, w, _ = layer(lib, shape, (*wanted, False))
        y = linear(x, w)
        return (
            y,
            history(y),
            gradients(lib, y * y, *(a for a, flag in zip((x, w), wanted, strict=True) if flag)),
        )

    same(scenario)


@pytest.mark.parametrize(
    "spoil", [lambda w: w[:, :2], lambda w: w[0], lambda w: w.float(), lambda w: w[None]]
)
def test_a_weight_without_a_bias_that_does_not_fit_is_torchs_error(
    spoil: Callable[[Any], Any],
) -> None:
    def scenario(lib: Any) -> Any:
        x, w, _ = layer(lib, (5, 3))
        y = linear(x, spoil(w))
        return y, history(y)

    expected, found = outcome(scenario, TORCH), outcome(scenario, OURS)
    assert found == expected


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3), (2, 2, 5, 3), (3,)], ids=str)
def test_dense_inputs_of_every_rank_take_the_short_way(
    arrived: list[str], shape: tuple[int, ...]
) -> None:
    args = layer(OURS, shape)
    arrived.clear()
    linear(*args)
    assert arrived == []


def test_nodes_are_numbered_in_the_order_of_the_parts() -> None:
    def scenario(lib: Any) -> Any:
        y = linear(*layer(lib, (2, 5, 3)))
        outer: Any = y.grad_fn
        addmm = outer.next_functions[0][0]
        inner, transposed = addmm.next_functions[1][0], addmm.next_functions[2][0]
        numbers = [n._sequence_nr() for n in (inner, transposed, addmm, outer)]
        return numbers == sorted(numbers), [n.name() for n in (inner, transposed, addmm, outer)]

    same(scenario)


def test_a_batch_comes_out_as_a_view_of_the_product() -> None:
    def scenario(lib: Any) -> Any:
        y = linear(*layer(lib, (2, 5, 3)))
        part, base = y[0], y._base  # torch 2.15 gives it memory of its own
        shown = None if base is None else (list(base.shape), name(base))
        return (
            y._is_view(),
            shown,
            part._base is (y if base is None else base),
            y.output_nr,
            y._version,
        )

    same(scenario)


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)], ids=str)
def test_the_result_can_be_written_to(shape: tuple[int, ...]) -> None:
    def scenario(lib: Any) -> Any:
        x, w, b = layer(lib, shape)
        y = linear(x, w, b)
        row = y[0]
        y.mul_(x.sum()).relu_()
        return history(y), name(row), y._version, row._version, gradients(lib, y * row, x, w, b)

    same(scenario)


def test_a_transposed_batch_goes_the_long_way(arrived: list[str]) -> None:
    def scenario(lib: Any) -> Any:
        x, w, b = layer(lib, (3, 5, 2))
        y = linear(x.transpose(0, 2), w, b)
        return y, history(y), gradients(lib, y, x, w, b)

    same(scenario)
    assert "_unsafe_view" in arrived


@pytest.mark.parametrize("spoil", [lambda w: w[:, :2], lambda w: w[0], lambda w: w.float()])
def test_arguments_that_do_not_fit_are_torchs_errors(spoil: Callable[[Any], Any]) -> None:
    def scenario(lib: Any) -> Any:
        x, w, b = layer(lib, (5, 3))
        return linear(x, spoil(w), b).sum()

    same(scenario, error=True)


def test_a_saved_argument_that_was_written_to_is_refused() -> None:
    x, w, b = layer(OURS, (2, 5, 3))
    h = x * 1
    y = linear(h, w, b)
    h.zero_()
    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation.*version 1; expected version 0"
    ):
        gradients(OURS, y, x, w, b)


def test_weights_that_torch_differentiates_stay_out_of_its_graph(arrived: list[str]) -> None:
    x, _, b = layer(OURS, (5, 3))
    foreign = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    y = linear(x, foreign, b)
    assert "addmm" in arrived
    assert not runtime.unwrap(y).requires_grad


def test_hooks_of_saved_tensors_see_what_the_parts_save() -> None:
    def scenario(lib: Any) -> Any:
        hooks = saved_tensors_hooks if lib is OURS else torch.autograd.graph.saved_tensors_hooks
        packed: list[Any] = []

        def pack(t: Any) -> Any:
            packed.append(list(t.shape))
            return t

        args = layer(lib, (2, 5, 3))
        with hooks(pack, lambda t: t):
            y = linear(*args)
        return sorted(packed), gradients(lib, y, *args)

    same(scenario)


def test_dispatch_modes_see_the_parts() -> None:
    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    args = layer(OURS, (2, 5, 3))
    with Names():  # type: ignore[no-untyped-call]
        linear(*args)
    assert seen == [
        "aten.view.default",
        "aten.t.default",
        "aten.addmm.default",
        END_OF_A_LINEAR_LAYER,
    ]


def test_tangents_pass_through() -> None:
    x, w, b = layer(OURS, (5, 3))
    with forward_ad.dual_level():
        y = linear(
            forward_ad.make_dual(x, runtime.wrap(torch.ones(5, 3, dtype=torch.double))), w, b
        )
        tangent = forward_ad.unpack_dual(y).tangent
        assert tangent is not None
        assert torch.equal(runtime.unwrap(tangent), runtime.unwrap(w.detach()).sum(1).expand(5, 4))


def test_autocast_applies() -> None:
    def scenario(lib: Any) -> Any:
        args = [t.float().detach().requires_grad_() for t in layer(lib, (2, 5, 3))]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(*args)
        return y.dtype, history(y)

    same(scenario)


def test_without_grad_mode_nothing_is_recorded() -> None:
    def scenario(lib: Any) -> Any:
        with torch.no_grad():
            y = linear(*layer(lib, (2, 5, 3)))
        return y, y.requires_grad, y._is_view()

    same(scenario)


@pytest.mark.parametrize(
    "f",
    [linear, lambda x, w, b: x @ w.t(), lambda x, w, b: layer_norm(x, (3,))],
    ids=["linear", "matmul", "layer_norm"],
)
def test_in_inference_mode_calls_arrive_as_ever(f: Callable[..., Any]) -> None:
    def scenario(lib: Any) -> Any:
        args = layer(lib, (2, 5, 3))
        with torch.inference_mode():
            return f(*args)

    same(scenario)


IN_INFERENCE_MODE: dict[str, Callable[[Any, Any], Any]] = {
    "an operator": lambda lib, x: x * 2,
    "a keyword argument": lambda lib, x: torch.addcmul(x, x, x, value=2),
    "a composite": lambda lib, x: linear(x, x),
    "a write": lambda lib, x: torch.zeros(2, 2).add_(x),
    "a list": lambda lib, x: torch._foreach_mul([x], 2)[0],
    "a view": lambda lib, x: x[0],
}


@pytest.mark.parametrize("what", IN_INFERENCE_MODE)
def test_inference_mode_records_nothing_with_grad_mode_inside(what: str) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(2, 2)
        with torch.inference_mode(), torch.enable_grad():
            return IN_INFERENCE_MODE[what](lib, x).requires_grad

    same(scenario)


def test_inference_tensors_cannot_be_saved() -> None:
    def scenario(lib: Any) -> Any:
        x, w, b = layer(lib, (5, 3))
        with torch.inference_mode():
            x = x * 1
        return linear(x, w, b)

    same(scenario, error=True)


def test_subclasses_of_others_still_handle_their_own_calls() -> None:
    class Logged(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*(x if isinstance(a, Logged) else a for a in args), **(kwargs or {}))

    seen: list[str] = []
    x, w, b = layer(TORCH, (5, 3), (False, False, False))
    y = linear(torch.Tensor._make_subclass(Logged, x), w, b)
    assert seen == ["aten.addmm.default"]
    assert torch.equal(y, linear(x, w, b))


def test_transforms_batch_and_differentiate_it() -> None:
    x, w, b = layer(TORCH, (6, 5, 3), (False, False, False))

    def loss(lib: Any) -> Callable[..., Any]:
        return lib.vmap(lib.grad(lambda x, w: linear(x, w, b).square().sum(), (0, 1)), (0, None))  # type: ignore[no-any-return]

    for ours, theirs in zip(loss(runtime.func)(x, w), loss(torch.func)(x, w), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_threads_record_their_own_graphs() -> None:
    args = layer(OURS, (2, 5, 3))
    expected = gradients(OURS, linear(*args), *args)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(gradients(OURS, linear(*args), *args)))
        for _ in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8
    assert all(torch.equal(a, b) for grads in found for a, b in zip(grads, expected, strict=True))


FACTORS = [
    ((2, 5, 3), (3, 4)),
    ((2, 5, 3), (3,)),
    ((2, 2, 5, 3), (3, 4)),
    ((0, 5, 3), (3, 4)),
    ((4, 3), (2, 3, 5)),
    ((3,), (2, 3, 5)),
    ((4, 3), (2, 2, 3, 5)),
    ((2, 5, 3), (2, 3, 4)),
    ((5, 3), (3, 4)),
    ((3,), (3, 4)),
]


@pytest.mark.parametrize(("first", "second"), FACTORS, ids=str)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_a_product_is_folded_where_torch_folds_it(
    first: tuple[int, ...], second: tuple[int, ...], wanted: tuple[bool, bool], transposed: bool
) -> None:
    def scenario(lib: Any) -> Any:
        stored = [s[::-1] if transposed else s for s in (first, second)]
        leaves = [(lib.leaf(*s) / 8).detach() for s in stored]
        x, y = (t.requires_grad_() if w else t for t, w in zip(leaves, wanted, strict=True))
        product = torch.matmul(
            *(t.permute(*range(t.dim())[::-1]) if transposed else t for t in (x, y))
        )
        return (
            product,
            product.stride(),
            history(product),
            gradients(lib, product, *(t for t, w in zip((x, y), wanted, strict=True) if w)),
        )

    same(scenario)


@pytest.mark.parametrize("wanted", [w for w in product((True, False), repeat=3) if any(w)], ids=str)
@pytest.mark.parametrize("given", [3, 2, 1], ids=["weight and bias", "weight", "neither"])
def test_a_normalized_layer_has_torchs_graph_and_gradients(
    wanted: tuple[bool, ...], given: int
) -> None:
    def scenario(lib: Any) -> Any:
        found = [lib.leaf(2, 4, 8) / 8, lib.leaf(8) / 8, lib.leaf(8) / 4][:given]
        args = [t.detach().requires_grad_(w) for t, w in zip(found, wanted, strict=False)]
        y = layer_norm(args[0], (8,), *args[1:])
        if y.grad_fn is None:
            return y, y.requires_grad
        node: Any = y.grad_fn
        return (
            [*history(y)],
            y.output_nr,
            node._saved_result1,
            gradients(lib, y * y, *(a for a in args if a.requires_grad)),
        )

    same(scenario)


def test_without_grad_mode_a_product_is_folded_as_well() -> None:
    x, w = torch.randn(5, 7, 257).transpose(0, 1), torch.randn(1, 257)
    with torch.no_grad():
        expected = torch.nn.functional.linear(x, w.clone().requires_grad_())
        assert runtime.unwrap(
            torch.nn.functional.linear(x, runtime.wrap(w, requires_grad=True))
        ).equal(expected)
