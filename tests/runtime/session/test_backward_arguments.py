"""Arguments of ``backward`` and ``grad``: the same answers and the same refusals as torch's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge as torch_edge_of

import runtime
from runtime.autograd.graph import get_gradient_edge
from tests.runtime.of_torch import INPUTS_MAY_BE_A_DICTIONARY


def close(found: Any, expected: Any) -> None:
    """The same structure with the same numbers. Tensors of the session count as
    those that they hold."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        close(tuple(found.values()), tuple(expected.values()))
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple) and len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            close(a, b)
    elif isinstance(expected, Tensor):
        assert found.requires_grad is expected.requires_grad
        torch.testing.assert_close(runtime.unwrap(found.detach()), expected.detach())
    else:
        assert found is expected


class Library:
    """Torch's functions, or ours."""

    def __init__(self, ours: bool) -> None:
        self.grad: Any = runtime.autograd.grad if ours else torch.autograd.grad
        self.backward: Any = runtime.autograd.backward if ours else torch.autograd.backward
        self.edge: Any = get_gradient_edge if ours else torch_edge_of
        self.ours = ours

    def leaf(self, *shape: int, dtype: torch.dtype = torch.float64) -> Any:
        x = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape).to(dtype)
        return runtime.wrap(x, requires_grad=True) if self.ours else x.requires_grad_()


Ask = Callable[[Library, Any, Any], Any]
"""Of a leaf of shape (2, 3) and a leaf of shape (3,)."""
ONES = torch.ones(2, 3, dtype=torch.float64)


def _grads_after(pass_: Callable[..., None], *leaves: Any) -> tuple[Any, ...]:
    pass_()
    return tuple(x.grad for x in leaves)


ANSWERS: dict[str, Ask] = {
    "no outputs, unused": lambda lib, x, y: lib.grad([], [x], allow_unused=True),
    "no outputs, zeros": lambda lib, x, y: lib.grad([], [x, y], materialize_grads=True),
    "no outputs, backward": lambda lib, x, y: _grads_after(lambda: lib.backward([]), x),
    "one tensor": lambda lib, x, y: lib.grad((x * y).sum(), x),
    "several tensors": lambda lib, x, y: lib.grad([(x * y).sum(), y.sum()], (x, y)),
    "a tensor beside one that has a cotangent": lambda lib, x, y: lib.grad(
        [(x * y), y.sum()], [x, y], [2 * ONES, None]
    ),
    "one element in two dimensions": lambda lib, x, y: lib.grad((x * y).sum().reshape(1, 1), x),
    "a dictionary": lambda lib, x, y: lib.grad((x * y).sum(), {"b": y, "a": x}),
    "an empty dictionary's order": lambda lib, x, y: lib.grad((x * y).sum(), {"y": y}),
    "unused": lambda lib, x, y: lib.grad(x.sum(), [x, y], allow_unused=True),
    "unused, as zeros": lambda lib, x, y: lib.grad(x.sum(), [x, y], materialize_grads=True),
    "unused, as zeros that are differentiable": lambda lib, x, y: lib.grad(
        x.sum(), [y], materialize_grads=True, create_graph=True
    ),
    "recorded": lambda lib, x, y: lib.grad(x.pow(3).sum(), x, create_graph=True),
    "recorded, and of second order": lambda lib, x, y: lib.grad(
        lib.grad(x.pow(3).sum(), x, create_graph=True)[0].sum(), x
    ),
    "a batch of cotangents": lambda lib, x, y: lib.grad(
        x * y, [x, y], torch.stack([ONES, 2 * ONES]), is_grads_batched=True
    ),
    "a batch, unused": lambda lib, x, y: lib.grad(
        2 * x, [y, x], ONES[None], is_grads_batched=True, allow_unused=True
    ),
    "a batch, recorded": lambda lib, x, y: lib.grad(
        x.pow(3), x, ONES[None], is_grads_batched=True, create_graph=True
    ),
    "an edge": lambda lib, x, y: lib.grad(lib.edge((x * y).sum()), [lib.edge(x)]),
    "an edge with a cotangent": lambda lib, x, y: lib.grad(lib.edge(x * y), [x], 2 * ONES),
    "an edge in the middle": lambda lib, x, y: _to_the_middle(lib, x, y),
    "into leaves": lambda lib, x, y: _grads_after(lambda: lib.backward((x * y).sum()), x, y),
    "into some leaves": lambda lib, x, y: _grads_after(
        lambda: lib.backward((x * y).sum(), inputs=[y]), x, y
    ),
    "into one leaf": lambda lib, x, y: _grads_after(
        lambda: lib.backward((x * y).sum(), inputs=y), x, y
    ),
    "into leaves of a dictionary": lambda lib, x, y: _grads_after(
        lambda: lib.backward((x * y).sum(), inputs={"y": y}), x, y
    ),
    "into a result": lambda lib, x, y: _into(lib, x, y, lambda z: [z]),
    "into a result and a leaf": lambda lib, x, y: _into(lib, x, y, lambda z: [z, y]),
    "into the edge of a result": lambda lib, x, y: _into(lib, x, y, lambda z: [lib.edge(z)]),
    "into the edge of a leaf": lambda lib, x, y: _into(lib, x, y, lambda z: [lib.edge(x)]),
    "with a cotangent": lambda lib, x, y: _grads_after(lambda: lib.backward(x * y, 2 * ONES), x, y),
    "twice": lambda lib, x, y: _grads_after(lambda: _twice(lib, (x * y).sum()), x, y),
}


def _into(lib: Library, x: Any, y: Any, inputs: Callable[[Any], list[Any]]) -> tuple[Any, ...]:
    z = x * y
    lib.backward(z.pow(2).sum(), inputs=inputs(z))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the gradient of what is no leaf
        return z.grad, x.grad, y.grad, z.retains_grad


def _to_the_middle(lib: Library, x: Any, y: Any) -> Any:
    z = x * y
    return lib.grad(z.pow(2).sum(), [lib.edge(z)])


def _twice(lib: Library, loss: Any) -> None:
    lib.backward(loss, retain_graph=True)
    lib.backward(loss)


OF_DICTIONARIES = ("a dictionary", "an empty dictionary's order", "into leaves of a dictionary")


class _Listing(Library):
    """Torch's functions where they take no dictionary of inputs, as in 2.12: called with a list."""

    def __init__(self, ours: bool) -> None:
        super().__init__(ours)
        grad, backward_ = self.grad, self.backward
        self.grad = lambda y, named: dict(zip(named, grad(y, list(named.values())), strict=True))
        self.backward = lambda y, inputs: backward_(y, inputs=list(inputs.values()))


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answers_are_torchs(name: str) -> None:
    theirs, ours = Library(False), Library(True)
    if name in OF_DICTIONARIES and not INPUTS_MAY_BE_A_DICTIONARY:
        theirs = _Listing(False)
    close(*(ANSWERS[name](lib, lib.leaf(2, 3), lib.leaf(3)) for lib in (ours, theirs)))


def _said_by_torch(inputs: list[Tensor]) -> str:
    """A pattern of the first sentence of torch's refusal to differentiate by these inputs."""
    with pytest.raises((RuntimeError, ValueError)) as caught:
        torch.autograd.grad(torch.ones((), requires_grad=True) * 2, inputs)
    return re.escape(str(caught.value).split(". ")[0])


REFUSED: dict[str, tuple[Ask, str]] = {  # what the message says in both
    "no inputs": (
        lambda lib, x, y: lib.grad(x.sum(), []),
        _said_by_torch([]),
    ),
    "no inputs of backward": (
        lambda lib, x, y: lib.backward(x.sum(), inputs=[]),
        r"`inputs` argument to `backward\(\)` cannot be empty",
    ),
    "no outputs, used": (
        lambda lib, x, y: lib.grad([], [x]),
        _said_by_torch([torch.ones((), requires_grad=True)]),
    ),
    "an input that is not used": (
        lambda lib, x, y: lib.grad(x.sum(), [x, y]),
        "(Tensor at index 1|One of the differentiated Tensors) appears",
    ),
    "an input without history": (
        lambda lib, x, y: lib.grad(x.sum(), [torch.ones(2)]),
        "One of the differentiated Tensors does not require grad",
    ),
    "an output without history": (
        lambda lib, x, y: lib.grad([x.sum(), torch.ones(())], [x]),
        "element 1 of tensors does not require grad",
    ),
    "backward of no history": (
        lambda lib, x, y: lib.backward(torch.ones(())),
        "element 0 of tensors does not require grad and does not have",
    ),
    "a vector": (
        lambda lib, x, y: lib.grad(y * 2, y),
        "grad can be implicitly created only for scalar outputs",
    ),
    "a complex number": (
        lambda lib, x, y: lib.grad((y * 1j).sum(), y),
        (
            "grad can be (implicitly created only for real scalar|computed only for real "
            "scalar) outputs but got"
        ),
    ),
    "an edge of a vector": (
        lambda lib, x, y: lib.grad(lib.edge(y * 2), [y]),
        "grad can be implicitly created only for scalar outputs",
    ),
    "fewer cotangents": (
        lambda lib, x, y: lib.grad([x.sum(), y.sum()], [x], [torch.ones(())]),
        "got 2 tensors and 1 grad",
    ),
    "a cotangent of another shape": (
        lambda lib, x, y: lib.grad(x * y, [x], ONES[0]),
        "Mismatch in shape: grad_output.0. has a shape of",
    ),
    "a complex cotangent": (
        lambda lib, x, y: lib.grad(x * y, [x], ONES * 1j),
        "Mismatch in dtype: grad_output.0. has a dtype of torch.complex128",
    ),
    "a number as a cotangent": (
        lambda lib, x, y: lib.grad(x.sum(), [x], [1.0]),
        "gradients can be either Tensors or None, but got float",
    ),
    "a batch of cotangents without a batch": (
        lambda lib, x, y: lib.grad(x * y, [x], ONES, is_grads_batched=True),
        (
            "If `is_grads_batched=True`, we interpret the first dimension of each grad_output "
            "as the batch dimension"
        ),
    ),
    "zeros for what must be used": (
        lambda lib, x, y: lib.grad(x.sum(), [x], allow_unused=False, materialize_grads=True),
        "Expected allow_unused to be True or not passed when materialize_grads=True",
    ),
    "zeros for an edge": (
        lambda lib, x, y: lib.grad(x.sum(), [lib.edge(y * 2)], materialize_grads=True),
        "materialize_grads cannot be used when the given input is a GradientEdge",
    ),
    "two names of one argument": (
        lambda lib, x, y: lib.backward(x * y, ONES, grad_variables=ONES),
        "`grad_tensors` and `grad_variables` .deprecated. arguments both passed to `backward..`",
    ),
    "the graph again": (
        lambda lib, x, y: [lib.backward(z) for z in [(x * y).sum()] * 2],
        "backward through the graph a second time",
    ),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`grad_variables` is deprecated")
        yield


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_the_refusals_are_torchs(name: str, ours: bool) -> None:
    lib, (ask, says) = Library(ours), REFUSED[name]
    with pytest.raises((RuntimeError, ValueError, TypeError), match=says):
        ask(lib, lib.leaf(2, 3), lib.leaf(3))


def test_a_refused_cotangent_is_named_by_its_number() -> None:
    x, y = Library(True).leaf(2, 3), Library(True).leaf(3)
    shapes = (
        r"grad_output.1. has a shape of torch.Size\(\[2, 3\]\) and output.1. "
        r"has a shape of torch.Size\(\[3\]\)"
    )
    with pytest.raises(RuntimeError, match=shapes):
        runtime.autograd.grad([x * y, y], [x], [ONES, ONES])
    with pytest.raises(
        RuntimeError,
        match=(
            f"batch dimension. Without it, {shapes}. "
            "For a batch of only some of them, call vmap of grad"
        ),
    ):
        runtime.autograd.grad([x * y, y], [x], [ONES[None], ONES[None]], is_grads_batched=True)


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("retain", [None, False, True])
def test_a_batch_of_cotangents_frees_the_graph_as_one_does(
    retain: bool | None, create: bool
) -> None:
    kept = []
    for ours in (False, True):
        lib = Library(ours)
        x = lib.leaf(3)
        y = x.exp()
        lib.grad(y, x, torch.ones(2, 3, dtype=torch.float64), retain, create, is_grads_batched=True)
        try:
            lib.grad(y, x, torch.ones(3, dtype=torch.float64))
            kept.append(True)
        except RuntimeError as e:
            assert "Trying to backward through the graph a second time" in str(e)
            kept.append(False)
    assert kept[0] is kept[1] is (create if retain is None else retain)


def test_inputs_are_a_dict_or_tensors() -> None:
    x = Library(True).leaf(3)
    with pytest.raises(
        TypeError,
        match=(
            r"`inputs` argument to `grad\(\)` must be a dict, "
            r"not mappingproxy. Pass dict\(inputs\)"
        ),
    ):
        runtime.autograd.grad(x.sum(), MappingProxyType({"x": x}))
    with pytest.raises(
        RuntimeError, match="all inputs have to be Tensors or GradientEdges, but got int"
    ):
        runtime.autograd.backward(x.sum(), inputs=[x, 3])


@pytest.mark.parametrize("ours", [False, True])
def test_names_that_are_deprecated_warn_and_do_what_they_did(ours: bool) -> None:
    lib = Library(ours)
    x, y = lib.leaf(2, 3), lib.leaf(3)
    with pytest.warns(FutureWarning, match="`grad_variables` is deprecated"):
        lib.backward(x * y, grad_variables=2 * ONES)
    close(y.grad, torch.tensor([10.0, 14, 18], dtype=torch.float64))
    with pytest.warns(FutureWarning, match="only_inputs argument is deprecated and is ignored now"):
        close(lib.grad(x.sum(), x, only_inputs=False), (ONES,))
    assert x.grad is not None


def test_each_recorded_pass_into_leaves_warns_of_the_cycle_if_torch_always_warns() -> None:
    x = Library(True).leaf(3)
    torch.set_warn_always(True)
    try:
        for _ in range(2):
            with pytest.warns(
                UserWarning, match="create a reference cycle between the parameter and its gradient"
            ):
                runtime.autograd.backward(x.pow(2).sum(), create_graph=True)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("enabled", [False, True])
def test_a_pass_leaves_the_grad_mode_as_it_was(enabled: bool) -> None:
    x = Library(True).leaf(3)
    loss = x.pow(2).sum()
    seen: list[bool] = []
    x.register_hook(lambda g: seen.append(torch.is_grad_enabled()))
    with torch.set_grad_enabled(enabled):
        runtime.autograd.grad(loss, x, retain_graph=True)
        runtime.autograd.grad(loss, x, create_graph=True)
        assert torch.is_grad_enabled() is enabled
        with pytest.raises(RuntimeError, match="Mismatch in shape"):
            runtime.autograd.grad(loss, x, torch.ones(4))
        assert torch.is_grad_enabled() is enabled
    assert seen == [False, True]


@pytest.mark.parametrize(
    "outputs",
    [lambda y, z: [y, z], lambda y, z: [z, y], lambda y, z: [y, y, z]],
    ids=["last", "first", "third"],
)
def test_a_pass_from_results_of_several_levels_is_one_of_the_innermost(
    outputs: Callable[[Tensor, Tensor], list[Tensor]],
) -> None:
    outside = runtime.tensor([2.0], requires_grad=True)
    y = outside * 3

    def program(x: Tensor) -> Tensor:
        z = x * x * 5
        g: Tensor = runtime.autograd.grad(
            outputs(y, z), x, [torch.ones(1)] * len(outputs(y, z)), create_graph=True
        )[0]
        return g.sum()

    close(runtime.func.grad(program)(torch.tensor([7.0])), torch.tensor([10.0]))
