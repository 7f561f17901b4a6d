"""What a program asks of its arguments beside their elements: the type of a number, and whether a
tensor is a leaf or a view. A call in which the answer is another one is of another kind."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import jit

OF_TYPES: dict[str, Callable[[Any], Any]] = {
    "type is": lambda k: 2 if type(k) is int else 3,
    "a table of types": lambda k: {int: 2, float: 3}.get(type(k), 7),
    "a name": lambda k: len(type(k).__name__),
    "issubclass": lambda k: 2 if issubclass(type(k), (int, float)) else 3,
    "isinstance": lambda k: 2 if isinstance(k, int) else 3,
}


@pytest.mark.parametrize("name", OF_TYPES)
def test_a_number_that_changes_keeps_its_type(name: str) -> None:
    def program(x: Any, k: Any) -> Any:
        return x * OF_TYPES[name](k) + k

    compiled = jit(program)
    for k in (2, 3, 4, 2.5, 3.5, 4.5):
        assert torch.equal(compiled(torch.ones(2), k), program(torch.ones(2), k)), k


def _kinds_of_tensors() -> dict[str, Any]:
    leaf = runtime.wrap(torch.ones(2), requires_grad=True)
    return {
        "leaf": leaf,
        "no leaf": leaf * 1,
        "plain": torch.ones(2),
        "a view": torch.ones(3)[:2],
        "a view of a leaf": leaf[:],
    }


OF_TENSORS: dict[str, Callable[[Any], bool]] = {
    "is_leaf": lambda x: x.is_leaf,
    "grad_fn": lambda x: x.grad_fn is None,
    "_is_view": lambda x: x._is_view(),
}


@pytest.mark.parametrize("name", OF_TENSORS)
def test_a_tensor_that_is_given_says_what_it_is(name: str) -> None:
    def program(x: Any) -> Any:
        return x * (2 if OF_TENSORS[name](x) else 3)

    compiled = jit(program)
    for _ in range(2):
        for kind, x in _kinds_of_tensors().items():
            assert compiled(x).tolist() == program(x).tolist(), kind


CLASS: Any = torch.Tensor
OF_THE_CLASS: dict[str, Callable[[Any], bool]] = {
    "is_leaf": lambda x: CLASS.is_leaf.__get__(x),
    "_is_view": lambda x: CLASS._is_view(x),
    "a method by its name": lambda x: getattr(CLASS, "_is_" + "view")(x),
}


@pytest.mark.parametrize("name", OF_THE_CLASS)
def test_a_tensor_says_the_same_to_a_function_of_the_class(name: str) -> None:
    def program(x: Any) -> Any:
        return x * (2 if OF_THE_CLASS[name](x) else 3)

    compiled = jit(program)
    tensors = (torch.ones(2, requires_grad=True), torch.ones(2), torch.ones(3)[:2])
    for _ in range(2):
        for x in tensors:
            assert compiled(x).tolist() == program(x).tolist()


OF_PLAIN_TENSORS: dict[str, Callable[[Any], int]] = {
    "storage_offset": lambda x: x.storage_offset(),
    "storage_offset of the class": lambda x: CLASS.storage_offset(x),
    "storage_offset of a view": lambda x: CLASS.storage_offset(x.detach()),
    "storage_offset of ATen": lambda x: torch.ops.aten.storage_offset(x),
    "sym_storage_offset of ATen": lambda x: torch.ops.aten.sym_storage_offset.default(x),
    "_version of ATen": lambda x: torch.ops.aten._version(x),
    "_version of the class": lambda x: CLASS._version.__get__(x),
    "stride of the class": lambda x: CLASS.stride(x)[0],
}


@pytest.mark.parametrize("name", OF_PLAIN_TENSORS)
def test_a_plain_tensor_says_where_it_lies(name: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * OF_PLAIN_TENSORS[name](x)

    compiled = jit(program)
    base = torch.arange(6.0)
    written = torch.ones(2).mul_(3)
    for _ in range(2):
        for x in (base[:2], base[1:3], base[::3], written):
            assert compiled(x).tolist() == program(x).tolist()


def test_whether_two_tensors_have_one_memory_is_refused_where_a_call_decides() -> None:
    base = torch.arange(4.0)
    compiled = jit(lambda x: x * 2 if x.is_set_to(base) else x * 3)
    with pytest.raises(RuntimeError, match=r"for 'is_set_to', which compares memory.*\n?.*base"):
        compiled(base[:4])
    # what the program computes is at the same place in each call
    assert jit(lambda x: x * (2 + (x * 1).is_set_to(x * 1)))(base).tolist() == [0, 2, 4, 6]


def test_a_leaf_that_the_program_keeps_has_its_history() -> None:
    compiled = jit(lambda x: (x if x.is_leaf else x.detach()) * 2)
    x = runtime.wrap(torch.ones(2), requires_grad=True)
    for _ in range(3):
        (gradient,) = runtime.autograd.grad(compiled(x).sum(), x)
        assert gradient.tolist() == [2.0, 2.0]
    assert not compiled(x * 1).requires_grad


def test_a_leaf_that_is_written_to_under_a_history_is_none_any_more() -> None:
    def program(x: Any, w: Any) -> Any:
        y = x.is_leaf
        x.mul_(w)
        return x * (2 if y else 3) + (10 if x.is_leaf else 20)

    w = runtime.wrap(torch.ones(2), requires_grad=True)
    compiled = jit(program)
    assert compiled(w * 1, w).tolist() == program(w * 1, w).tolist()


def test_the_base_of_an_argument_is_refused_with_the_line() -> None:
    compiled = jit(lambda x: x * 2 if x._base is None else x._base * 3)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match=r"for its base.*\n?.*x\._base is None"):
        compiled(torch.ones(3)[:2])


def test_a_program_that_asks_nothing_is_one_for_leaves_and_views() -> None:
    compiled = jit(lambda x: x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in _kinds_of_tensors().values():
            compiled(x)
    assert len(jit.explain(compiled).programs) == 2


@pytest.mark.parametrize("view", [lambda x: x.view(-1), lambda x: x[:1][:1]], ids=["one", "two"])
def test_the_base_of_a_view_is_the_argument_unless_that_is_a_view(view: Any) -> None:
    def program(x: Any) -> Any:
        return x * (2 if view(x)._base is x else 3)

    compiled = jit(program)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
        with pytest.raises(RuntimeError, match="for its base"):
            compiled(torch.ones(3)[:2])


Form = tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], int]]
FORMS: dict[str, Form] = {
    "sparse dimensions": (
        lambda: torch.sparse_coo_tensor(
            torch.tensor([[0, 0], [0, 1]]), torch.tensor([1.0, 1.0]), (2, 3)
        ),
        lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 3), (2, 3)),
        lambda x: x.sparse_dim(),
    ),
    "coalesced entries": (
        lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 1.0]), (2,)),
        lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (2,)).coalesce(),
        lambda x: x.is_coalesced(),
    ),
    "dense dimensions of rows": (
        lambda: torch.ones(2, 2, 2).to_sparse_csr(),
        lambda: torch.ones(2, 2, 2).to_sparse_csr(dense_dim=1),
        lambda x: x.dense_dim(),
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore:Sparse (invariant checks|CSR tensor support):UserWarning")
def test_the_form_of_a_sparse_argument_counts(form: str, dynamic: bool) -> None:
    first, second, ask = FORMS[form]
    compiled = jit(lambda x, sparse: x * (1 + ask(sparse)), dynamic=dynamic)
    for make in (first, second, first):
        assert compiled(torch.ones(()), make()) == 1 + ask(make())
    assert len(jit.explain(compiled).programs) == 2
