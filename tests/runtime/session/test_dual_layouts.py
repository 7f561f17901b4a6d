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
from runtime.session.dual import Tangents, empty_like_laid_out, laid_out_like, unshared

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


@pytest.mark.parametrize("of", LAYOUTS)
@pytest.mark.parametrize("like", LAYOUTS)
def test_a_tangent_is_laid_out_as_its_primal(of: str, like: str) -> None:
    t, p = LAYOUTS[of](), LAYOUTS[like]()
    found = laid_out_like(t, p)
    assert _layout(found) == _layout(p) and torch.equal(found, t)
    assert (found is t) is (of == like)
    zeros = empty_like_laid_out(t, p)
    assert _layout(zeros) == _layout(p) and not torch.count_nonzero(
        zeros.resolve_conj().resolve_neg()
    )


@pytest.mark.parametrize("like", LAYOUTS)
def test_a_tangent_of_the_session_is_laid_out_as_well(like: str) -> None:
    t, p = runtime.wrap(_complex(2, 3)), LAYOUTS[like]()
    found = laid_out_like(t, p)
    assert (
        type(found) is runtime.Tensor
        and _layout(found._inner) == _layout(p)
        and (found is t) is (like == "plain")
    )


def test_the_zeros_of_a_sparse_primal_have_its_shape_and_a_tangent_of_one_stays_as_it_is() -> None:
    sparse, t = torch.eye(2).to_sparse(), torch.ones(2, 2)
    assert empty_like_laid_out(t, sparse).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert laid_out_like(t, sparse) is t and laid_out_like(sparse, t) is sparse


def test_sizes_of_one_and_empty_tensors_have_no_strides_to_follow() -> None:
    one, empty = torch.ones(1, 3), torch.ones(3, 1).t()
    assert laid_out_like(one, empty).stride() == one.stride()
    nothing = torch.ones(0, 3)
    assert laid_out_like(nothing, torch.ones(3, 0).t()) is nothing


def test_a_tangent_is_copied_if_an_argument_has_it() -> None:
    t, other = runtime.wrap(torch.ones(3)), runtime.wrap(torch.ones(3))
    part = t[1:]
    assert unshared(t, [other, None, [other]]) is t and unshared(None, [t]) is None
    for inputs in ([t], [None, [other, t]], [part], [[part]]):
        found = unshared(t, inputs)
        assert found is not t and found.tolist() == [1.0] * 3 and found.data_ptr() != t.data_ptr()
    both = unshared([t, None, other], [t])
    assert both[0] is not t and both[1] is None and both[2] is other
    plain = torch.ones(3)
    assert unshared(plain, [plain]) is plain


def test_tangents_belong_to_one_dual_level_and_leave_with_it() -> None:
    first, second, t = Tangents(), Tangents(), runtime.wrap(torch.ones(3))
    assert first.of(t) is None and not first.entered(t._inner)
    first.put(t._inner, "tangent")
    assert (
        first.of(t) == "tangent"
        and first.entered(t._inner)
        and second.of(t) is None
        and not second.entered(t._inner)
    )
    second.close()
    assert first.of(t) == "tangent"
    second.put(t._inner, None)
    assert first.of(t) is None and second.entered(t._inner) and second.of(t) is None
    first.close()
    assert second.entered(t._inner)
    second.close()
    assert not second.entered(t._inner)


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
