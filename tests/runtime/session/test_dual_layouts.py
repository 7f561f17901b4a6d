"""A tangent lies in memory as its primal does and shares no memory with another tangent; indices of
too many dimensions are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.autograd import forward_ad
from runtime.errors import MissingRule

from ..view_scenarios import OURS, TORCH

Make = Callable[[], torch.Tensor]


def _complex(*shape: int) -> torch.Tensor:
    t = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)
    return torch.complex(t, -t)


LAYOUTS: dict[str, Make] = {
    "plain": lambda: _complex(2, 3),
    "transposed": lambda: _complex(3, 2).t(),
    "with gaps": lambda: _complex(2, 6)[:, ::2],
    "with an offset": lambda: _complex(4, 3)[2:],
    "the start of more": lambda: _complex(4, 3)[:2],
    "conjugated": lambda: _complex(2, 3).conj(),
    "negated": lambda: torch._neg_view(_complex(2, 3)),
    "both, with gaps": lambda: torch._neg_view(_complex(2, 6)[:, 1::2].conj()),
}


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    return (
        t.shape,
        t.stride(),
        t.storage_offset(),
        t.untyped_storage().nbytes(),
        t.is_conj(),
        t.is_neg(),
        t.dtype,
    )


def _tangent(primal: Any, tangent: Any) -> Any:
    """The tangent of a dual tensor, which is laid out as the primal."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(primal, tangent)).tangent


@pytest.mark.parametrize("of", LAYOUTS)
@pytest.mark.parametrize("like", LAYOUTS)
def test_a_tangent_is_laid_out_as_its_primal(of: str, like: str) -> None:
    t, p = LAYOUTS[of](), LAYOUTS[like]()
    found = _tangent(runtime.wrap(p), t)
    assert torch.equal(runtime.unwrap(found), t)
    assert _layout(runtime.unwrap(found)) == _layout(p)
    assert (found.data_ptr() == t.data_ptr()) is (of == like)


@pytest.mark.parametrize("like", LAYOUTS)
def test_a_tangent_of_the_session_is_laid_out_as_well(like: str) -> None:
    t, p = runtime.wrap(_complex(2, 3)), LAYOUTS[like]()
    found = _tangent(runtime.wrap(p), t)
    assert type(found) is runtime.Tensor
    assert _layout(runtime.unwrap(found)) == _layout(p)
    assert (found.data_ptr() == t.data_ptr()) is (like == "plain")


def test_sizes_of_one_and_empty_tensors_have_no_strides_to_follow() -> None:
    for t, p in (
        (torch.ones(1, 3), torch.ones(3, 1).t()),
        (torch.ones(0, 3), torch.ones(3, 0).t()),
    ):
        assert _tangent(runtime.wrap(p), t).stride() == t.stride()


def test_a_tangent_of_a_level_leaves_with_it() -> None:
    x = runtime.wrap(torch.ones(3))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(3))
        assert forward_ad.unpack_dual(dual).tangent is not None
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(dual).tangent is None


WRITES: dict[str, Callable[[Any], Any]] = {
    "a factor": lambda y: y.mul_(3),
    "a part": lambda y: y[0].mul_(3),
    "a part by another part": lambda y: y[0].mul_(y[1]),
    "a column": lambda y: y[:, 1].copy_(y[:, 0]),
    "a number": lambda y: y.fill_(2.0),
    "a comparison": lambda y: y.gt_(2),
    "a transpose": lambda y: y.t_().mul_(2),
    "what is detached": lambda y: y.detach_().mul_(3),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_a_dual_tensor_has_torchs_tangent(name: str, recorded: bool) -> None:
    x, v = torch.arange(1.0, 5.0).reshape(2, 2), torch.tensor([[1.0, -1.0], [0.5, 2.0]])

    def run(lib: Any, x: Any, v: Any) -> Any:
        with lib.dual_level(), torch.set_grad_enabled(recorded):
            dual = lib.make_dual(x, v)
            y = dual * 1
            WRITES[name](y)
            primal, tangent = lib.unpack_dual(y)
            again = lib.unpack_dual(dual).tangent
            return [
                None if t is None else runtime.unwrap(t).tolist() for t in (primal, tangent, again)
            ]

    assert run(forward_ad, runtime.wrap(x.clone()), runtime.wrap(v.clone())) == run(
        torch.autograd.forward_ad, x.clone(), v.clone()
    )


def test_the_tangent_of_a_product_with_itself_in_place_is_that_of_the_square() -> None:
    """Torch reads the primal when it has been written to."""
    x, v = torch.arange(1.0, 5.0), torch.tensor([1.0, -1.0, 0.5, 2.0])
    with forward_ad.dual_level():
        y = forward_ad.make_dual(runtime.wrap(x), v) * 1
        y.mul_(y)
        found: Any = forward_ad.unpack_dual(y).tangent
        assert torch.equal(runtime.unwrap(found), 2 * x * v)


TOO_MANY: dict[str, Any] = {
    "numbers": (0, 1, 2),
    "after dots": (Ellipsis, 0, 0, 0),
    "ranges": (slice(0, 1), slice(0, 1), 0),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", TOO_MANY)
def test_an_index_of_too_many_dimensions_is_torchs_error_and_writes_nothing(
    name: str, recorded: bool
) -> None:
    def error(lib: Any, value: Any) -> tuple[str, Any]:
        y = lib.leaf(2, 3) * 1
        y = y if recorded else y.detach()
        with pytest.raises(IndexError) as found:
            y[TOO_MANY[name]] = value
        with pytest.raises(IndexError) as read:
            y[TOO_MANY[name]]
        assert y._version == 0
        return str(found.value), str(read.value)

    for value in (1.0, torch.ones(1, dtype=torch.float64)):
        assert error(OURS, value) == error(TORCH, value)


LIBRARY = torch.library.Library("runtime_dual_tests", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CPU")
LIBRARY.define("double(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.impl("double", lambda x: x.mul_(2), "CPU")


@pytest.mark.parametrize("name", ["twice", "double"])
def test_an_op_without_rules_is_named_and_takes_what_has_no_tangent(name: str) -> None:
    op = getattr(torch.ops.runtime_dual_tests, name)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(
            MissingRule,
            match=(
                rf"Trying to use forward AD with {name} "
                rf".*runtime_dual_tests\.{name}\.default has no jvp rule"
            ),
        ):
            op(dual)
        assert op(forward_ad.unpack_dual(dual).primal.clone()).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("dual", [False, True])
def test_a_recorded_write_keeps_what_its_formula_needs_of_a_dual_tensor_and_of_its_primal(
    dual: bool,
) -> None:
    found = []
    for lib, duals in ((TORCH, torch.autograd.forward_ad), (OURS, forward_ad)):
        with duals.dual_level():
            x = lib.leaf(2)
            t: Any = duals.make_dual(x * 1, torch.ones(2, dtype=torch.float64))
            t = t if dual else duals.unpack_dual(t).primal
            t.mul_(x)
            tangent = duals.unpack_dual(t).tangent
            (g,) = lib.grad(t.sum(), x)
            found.append((t.tolist(), None if tangent is None else tangent.tolist(), g.tolist()))
    assert found[0] == found[1] and (found[0][1] is not None) is dual


@pytest.mark.parametrize(
    "part", [torch.real, torch.imag, lambda z: torch.view_as_real(z)[:, 1], lambda z: z.conj().imag]
)
def test_a_write_to_a_real_view_gives_a_complex_base_a_complex_tangent(
    part: Callable[[Any], Any],
) -> None:
    found = []
    for lib, duals in ((TORCH, torch.autograd.forward_ad), (OURS, forward_ad)):
        with duals.dual_level():
            z: Any = lib.leaf(2).detach() * (1 + 2j)
            part(z).mul_(duals.make_dual(lib.leaf(2).detach(), torch.ones(2, dtype=torch.float64)))
            found.append((z.tolist(), duals.unpack_dual(z).tangent.tolist()))
    assert found[0] == found[1]
