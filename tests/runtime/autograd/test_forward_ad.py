"""Forward mode at level zero: levels, dual tensors and the tangents of what is
computed with them."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import aot, unwrap, wrap
from runtime.autograd import forward_ad as fw
from runtime.errors import InplaceError

from .duals import close, dual, rand, tangent, through_torch

# ---- levels


def test_levels_are_numbered_from_zero_and_do_not_nest() -> None:
    with fw.dual_level() as number:
        assert number == 0 == fw.current_level()
        with pytest.raises(
            RuntimeError, match="Nested forward mode AD is not supported at the moment"
        ):
            fw.enter_dual_level()
    assert fw.current_level() == -1


def test_entering_and_leaving_by_hand() -> None:
    number = fw.enter_dual_level()
    with pytest.raises(RuntimeError, match="not the last one that was created"):
        fw.exit_dual_level(level=7)
    fw.exit_dual_level(level=number)
    with pytest.raises(RuntimeError, match="Dual level must be a positive number"):
        fw.exit_dual_level()


def test_a_level_ends_with_the_exception_that_leaves_it() -> None:
    with pytest.raises(ZeroDivisionError), fw.dual_level():
        _ = 1 / 0
    assert fw.current_level() == -1


def test_make_dual_needs_a_level() -> None:
    with pytest.raises(RuntimeError, match="no level exists, make sure to enter_dual_level"):
        dual(rand(2), rand(2))


def test_unpacking_outside_of_a_level_gives_the_tensor_itself() -> None:
    x = wrap(rand(2))
    primal, t = fw.unpack_dual(x)
    assert primal is x and t is None


def test_only_tensors_of_the_session_are_unpacked(level: None) -> None:
    plain = torch.ones(2)
    assert fw.unpack_dual(plain).primal is plain and fw.unpack_dual(plain).tangent is None
    for bad in (3, None, [plain]):
        with pytest.raises(TypeError, match="must be Tensor, not"):
            fw.unpack_dual(bad)  # type: ignore[arg-type]


def test_a_level_is_named_by_its_number(level: None) -> None:
    x, t = wrap(torch.ones(1)), wrap(torch.ones(1))
    for number in (None, 0):
        assert fw.unpack_dual(fw.make_dual(x, t, level=number), level=number).tangent is t
    d = fw.make_dual(x, t)
    assert fw.unpack_dual(d, level=-1) == (d, None)  # that of no level
    with pytest.raises(RuntimeError, match="no level exists"):
        fw.make_dual(x, t, level=-1)
    for number in (1, -2):
        with pytest.raises(RuntimeError, match="Invalid level given to _make_dual"):
            fw.make_dual(x, t, level=number)
        with pytest.raises(RuntimeError, match="Invalid level given to _fw_primal"):
            fw.unpack_dual(d, level=number)
    for number, message in (
        (1, "not the last one that was created"),
        (-1, "must be a positive number"),
    ):
        with pytest.raises(RuntimeError, match=message):
            fw.exit_dual_level(level=number)
    assert fw.current_level() == 0


def test_no_level_can_be_left_by_its_number_twice() -> None:
    fw.enter_dual_level()
    fw.exit_dual_level(level=0)
    with pytest.raises(RuntimeError, match="not the last one that was created"):
        fw.exit_dual_level(level=0)


def test_after_the_level_a_dual_tensor_is_its_primal() -> None:
    x = wrap(rand(3), requires_grad=True)
    with fw.dual_level():
        d = fw.make_dual(x, wrap(torch.ones(3, dtype=torch.float64)))
        y = d * d
    assert tangent(y) is None
    y.sum().backward()
    assert x.grad is not None
    close(unwrap(x.grad), 2 * unwrap(x.detach()))
    with fw.dual_level():
        assert tangent(y) is None and tangent(d * 3) is None
        again = fw.make_dual(d, wrap(torch.ones(3, dtype=torch.float64)))
        close(unwrap(tangent(again.detach() * again)), unwrap(x.detach()))


def test_a_tangent_lives_as_long_as_its_dual_tensor_and_no_longer_than_the_level() -> None:
    gc.collect()
    gc.disable()
    try:
        with fw.dual_level():
            t = wrap(rand(2))
            seen = weakref.ref(t)
            d = fw.make_dual(wrap(rand(2)), t)
            del t
            assert seen() is not None
            del d
            assert seen() is None
            x = wrap(rand(2), requires_grad=True)
            # the tape of its tangent leads back to y: a cycle that the level's end opens
            y = fw.make_dual(x, wrap(rand(2))).exp()
            seen = weakref.ref(tangent(y))
            del y
        assert seen() is None
    finally:
        gc.enable()


# ---- making and unpacking


def test_a_tangent_is_taken_as_it_is(level: None) -> None:
    x, t = wrap(rand(2)), wrap(rand(2, seed=1))
    d = fw.make_dual(x, t)
    first, second = fw.unpack_dual(d), fw.unpack_dual(d)
    assert isinstance(first, fw.UnpackedDualTensor)
    assert first.tangent is t and second.tangent is t
    assert first.primal is not second.primal
    close(unwrap(first.primal), unwrap(x))
    assert tangent(x) is None, "the primal itself got a tangent"
    assert tangent(first.primal) is None and tangent(first.primal[:1]) is None


def test_a_tangent_of_another_layout_is_copied_into_that_of_the_primal(level: None) -> None:
    wide = rand(5)
    x, t = wrap(wide[:4]), wrap(rand(4, seed=1))
    d = fw.make_dual(x, t)
    assert tangent(d) is not t
    close(unwrap(tangent(d)), unwrap(t))
    # reaches past the primal, so there must be a tangent there
    assert d.as_strided((5,), (1,), 0).shape == (5,)
    close(
        unwrap(tangent(d.as_strided((5,), (1,), 0))),
        torch.cat([unwrap(t), torch.zeros(1, dtype=torch.float64)]),
    )
    transposed = fw.make_dual(wrap(rand(2, 3).t()), wrap(rand(3, 2, seed=2)))
    assert tangent(transposed).stride() == transposed.stride()


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[:, 1:],
        lambda x: x.t(),
        lambda x: x[1],
        lambda x: x.as_strided((2, 2), (1, 2), 3),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_the_memory_of_a_tangent_is_as_large_as_that_of_its_primal(
    level: None, part: Callable[[Any], Any], dtype: torch.dtype
) -> None:
    x = part(torch.arange(12).reshape(3, 4).to(dtype))
    d = fw.make_dual(wrap(x), wrap(torch.ones(x.shape, dtype=dtype)))
    t = unwrap(tangent(d))
    assert (t.stride(), t.storage_offset()) == (x.stride(), x.storage_offset())
    assert t.untyped_storage().nbytes() == x.untyped_storage().nbytes() == 12 * dtype.itemsize
    close(t, torch.ones(x.shape, dtype=dtype))
    # what the primal does not show has no tangent
    assert t.as_strided((12,), (1,), 0).count_nonzero() == x.numel()


@pytest.mark.parametrize("primal_bit", ["neither", "conj", "neg"])
@pytest.mark.parametrize("tangent_bit", ["neither", "conj", "neg"])
def test_lazy_bits_are_part_of_the_layout(level: None, primal_bit: str, tangent_bit: str) -> None:
    bits: dict[str, Callable[[Any], Any]] = {
        "neither": lambda x: x,
        "conj": lambda x: x.conj(),
        "neg": lambda x: x._neg_view(),
    }
    x, t = (
        bits[primal_bit](torch.randn(2, 3, dtype=torch.complex128)),
        bits[tangent_bit](torch.randn(2, 3, dtype=torch.complex128)),
    )
    given = wrap(t)
    d = fw.make_dual(wrap(x), given)
    assert (tangent(d) is given) == (primal_bit == tangent_bit)
    close(unwrap(tangent(d)).resolve_conj().resolve_neg(), t.resolve_conj().resolve_neg())
    close(unwrap(tangent(torch.real(d))).resolve_neg(), t.real.clone())
    close(unwrap(tangent(torch.imag(d))).resolve_neg(), t.imag.clone())


def test_what_cannot_be_a_dual_tensor_is_refused(level: None) -> None:
    x, t = wrap(rand(2)), wrap(rand(2, seed=1))
    d = fw.make_dual(x, t)
    with pytest.raises(
        RuntimeError, match=r"has a different size .* of size \[2\], its tangent of size \[3\]"
    ):
        fw.make_dual(x, wrap(rand(3)))
    with pytest.raises(
        ValueError, match=r"Expected tangent to be floating point or complex, but got: torch.int64"
    ):
        fw.make_dual(x, wrap(torch.ones(2, dtype=torch.int64)))
    with pytest.raises(
        ValueError, match=r"Expected primal to be floating point or complex, but got: torch.int64"
    ):
        fw.make_dual(wrap(torch.ones(2, dtype=torch.int64)), t)
    with pytest.raises(
        RuntimeError,
        match="based on a Tensor that already has a forward gradient at the same level",
    ):
        fw.make_dual(d, t)
    with pytest.raises(
        RuntimeError, match="a forward grad that itself has a forward gradient at the same level"
    ):
        fw.make_dual(x, d)
    with pytest.raises(RuntimeError, match="Invalid level given to _make_dual"):
        fw.make_dual(x, t, level=1)
    with pytest.raises(
        RuntimeError,
        match=r"dtype torch.float64 on cpu cannot have a tangent of dtype torch.float32",
    ):
        fw.make_dual(x, t.float())
    with pytest.raises(RuntimeError, match=r"cannot have a tangent .* on meta"):
        fw.make_dual(x, wrap(torch.ones(2, dtype=torch.float64, device="meta")))


def test_inside_a_function_transform_jvp_is_recommended(level: None) -> None:
    with pytest.raises(RuntimeError, match=r"value of vmap.*use runtime.func.jvp"):
        runtime.func.vmap(lambda x: fw.make_dual(x, x))(rand(3, 2))


def test_printing_shows_the_tangent(level: None) -> None:
    d = dual(torch.zeros(2), torch.ones(2))
    assert repr(d) == "tensor([0., 0.], tangent=tensor([1., 1.]))"
    assert "tangent" not in repr(fw.unpack_dual(d).primal)


# ---- tangents of results


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sin() * x,
        lambda x: x.exp() / (1 + x),
        lambda x: x @ x.t(),
        lambda x: torch.linalg.solve(x, x[0]),
        lambda x: torch.cat([x, x[:1]]).cumsum(0),
        lambda x: x.softmax(-1).max(-1).values,
        lambda x: x.t().reshape(-1)[2:7].double().sum(),
        lambda x: torch.nn.functional.layer_norm(x, (3,)),
        lambda x: torch.stack(x.unbind(1)).sort().values,
        lambda x: x.float(),
        lambda x: x * float(x[0, 0]),
        lambda x: x.floor(),
        lambda x: torch.view_as_real(torch.fft.fft(x)),
    ],
)
def test_tangents_agree_with_torch(level: None, f: Callable[..., Any]) -> None:
    x, t = rand(3, 3), rand(3, 3, seed=1)
    expected = through_torch(f, x, t)
    got: Any = fw.unpack_dual(f(dual(x, t)))
    close(unwrap(got.primal), expected[0])
    close(unwrap(got.tangent), expected[1])


def test_results_that_do_not_depend_on_a_dual_tensor_have_no_tangent(level: None) -> None:
    d = dual(rand(2), rand(2, seed=1))
    assert tangent(wrap(rand(2)) * 2) is None
    assert tangent(d.detach()) is None
    assert tangent(d.long()) is None
    assert tangent(torch.zeros_like(d)) is None or not unwrap(tangent(torch.zeros_like(d))).any()


def test_a_module_with_dual_inputs_and_parameters(level: None) -> None:
    torch.manual_seed(0)
    w, b, x = rand(2, 3), rand(2, seed=1), rand(4, 3, seed=2)
    dw, dx = rand(2, 3, seed=3), rand(4, 3, seed=4)
    y = torch.nn.functional.linear(dual(x, dx), dual(w, dw), wrap(b)).tanh()
    inner = x @ w.t() + b
    close(unwrap(tangent(y)), (1 - inner.tanh() ** 2) * (dx @ w.t() + x @ dw.t()))


def test_an_out_argument_is_refused(level: None) -> None:
    d, plain = dual(rand(2), rand(2, seed=1)), wrap(rand(2))
    for args, out in (((d, plain), wrap(rand(2))), ((plain, plain), d)):
        with pytest.raises(
            NotImplementedError,
            match="Trying to use forward AD with add_out that does not support it",
        ):
            torch.add(*args, out=out)


def test_an_op_without_a_rule_is_named(level: None) -> None:
    with pytest.raises(
        NotImplementedError,
        match=r"Trying to use forward AD with \w+ that does not support it: aten\.\w+.* has no jvp",
    ):
        torch.ops.aten._standard_gamma_grad.default(dual(rand(2), rand(2)), rand(2))


# ---- modes


def test_no_grad_leaves_forward_mode_on(level: None) -> None:
    with runtime.autograd.no_grad():
        y = dual(torch.ones(2), torch.full((2,), 3.0)) * 2
    close(unwrap(tangent(y)), torch.full((2,), 6.0))


def test_forward_mode_can_be_turned_off(level: None) -> None:
    d = dual(torch.ones(2), torch.ones(2))
    with fw._set_fwd_grad_enabled(False):
        assert not fw._is_fwd_grad_enabled()
        assert tangent(d) is None
        y = d * 2
    assert fw._is_fwd_grad_enabled()
    assert tangent(y) is None and tangent(d) is not None


def test_inference_mode_turns_it_off(level: None) -> None:
    with runtime.autograd.inference_mode():
        assert tangent(fw.make_dual(wrap(torch.ones(2)), wrap(torch.ones(2)))) is None


# ---- writes and views


def test_writing_a_dual_tensor_writes_its_primal_and_its_tangent(level: None) -> None:
    x, t = wrap(rand(2)), wrap(torch.ones(2, dtype=torch.float64))
    before = unwrap(x).clone()
    d = fw.make_dual(x, t)
    d *= 2
    close(unwrap(x), before * 2)
    close(unwrap(t), torch.full((2,), 2.0, dtype=torch.float64))
    assert tangent(x) is None
    primal, own = fw.unpack_dual(d)
    assert own is not None
    primal *= 2
    close(unwrap(d), before * 4)
    own *= 5
    close(unwrap(tangent(d)), torch.full((2,), 10.0, dtype=torch.float64))


def test_a_view_of_a_dual_tensor_has_a_view_of_its_tangent(level: None) -> None:
    d = dual(torch.ones(3), torch.ones(3))
    view = d.narrow(0, 1, 2)
    view *= 2
    close(unwrap(tangent(d)), torch.tensor([1.0, 2.0, 2.0]))
    d += d
    close(unwrap(tangent(view)), torch.tensor([4.0, 4.0]))


def test_a_write_gives_a_tensor_a_tangent_and_all_its_views_theirs(level: None) -> None:
    base = wrap(torch.zeros(3))
    part, other = base[:2], base[1:]
    part.copy_(dual(torch.ones(2), torch.tensor([5.0, 7.0])))
    close(unwrap(tangent(base)), torch.tensor([5.0, 7.0, 0.0]))
    close(unwrap(tangent(other)), torch.tensor([7.0, 0.0]))
    other.zero_()
    close(unwrap(tangent(part)), torch.tensor([5.0, 0.0]))
    aside = base.detach()
    aside += 1
    assert tangent(aside) is None


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.div_(y + 1),
        lambda y: y.exp_(),
        lambda y: y[0].copy_(y[1]),
        lambda y: y.t().add_(y[0].clone()),
        lambda y: y.masked_fill_(y > 0.5, 0.0),
        lambda y: y.diagonal().fill_(3.0),
        lambda y: y.unsqueeze_(0).sin_(),
        lambda y: y.transpose_(0, 1),
        lambda y: y.clamp_(0.2, 0.7),
        lambda y: y.index_add_(0, torch.tensor([0, 0]), y[1:].clone()),
        lambda y: y.index_put_((torch.tensor([0, 1]),), y[2].clone()),
        lambda y: y.index_put_(
            (torch.tensor([0, 0]), torch.tensor([1, 2])), y[2, 0] * 2, accumulate=True
        ),
        lambda y: y.masked_fill_(y < 0.5, y[0, 0] * 3),
        lambda y: y.zero_(),
        lambda y: y.copy_(torch.ones(3, 3, dtype=torch.float64)),
        lambda y: torch._foreach_mul_([y, y[0].clone()], 2.0),
        lambda y: torch._foreach_addcmul_([y[0], y[1]], [y[2] * 1, y[2] * 2], [y[2] * 3, y[2] * 4]),
    ],
)
def test_writes_agree_with_torch(level: None, write: Callable[..., Any]) -> None:
    def f(x: Any) -> Any:
        y = x * 1
        write(y)
        return y

    x, t = rand(3, 3), rand(3, 3, seed=1)
    expected = through_torch(f, x, t)
    got: Any = fw.unpack_dual(f(dual(x, t)))
    close(unwrap(got.primal), expected[0])
    close(unwrap(got.tangent), expected[1])


def test_a_write_that_reads_its_target_uses_the_value_from_before(level: None) -> None:
    """Here torch computes another number: its formula reads what has been written already."""
    x, t = rand(3), rand(3, seed=1)
    y = dual(x, t) * 1
    close(unwrap(tangent(y.mul_(y))), 2 * x * t)
    y = dual(x, t) * 1
    close(unwrap(tangent(y.addcmul_(y, y))), t + 2 * x * t)


def test_a_dual_tensor_can_be_detached_in_place_and_not_resized(level: None) -> None:
    x = dual(torch.ones(2), torch.ones(2)) * 3
    assert x.detach_() is x and tangent(x) is None and tangent(x * 2) is None
    assert tangent(x + dual(torch.ones(2), torch.ones(2))) is not None
    d = dual(torch.ones(2), torch.ones(2))
    changes: list[Any] = [
        lambda: d.resize_(3),
        lambda: d.set_(torch.ones(3)),
        lambda: d.resize_as_(torch.ones(3)),
    ]
    for change in changes:
        with pytest.raises(
            InplaceError, match="changes the geometry of a tensor that has a tangent"
        ):
            change()
    assert tangent(d).tolist() == [1.0, 1.0] and d.shape == (2,)


def test_a_view_of_an_unpacked_primal_has_no_tangent(level: None) -> None:
    """Though its base may have one."""
    y = dual(torch.ones(3), torch.ones(3)) * 2
    primal = fw.unpack_dual(y).primal
    for view in (primal[:2], primal.view(3, 1), primal.view(3, 1)[0], *primal.split(1)):
        assert tangent(view) is None and tangent(view * 2) is None
    assert tangent(y[:2]).tolist() == [2.0, 2.0]


def test_a_view_of_what_was_written_has_one_tangent(level: None) -> None:
    base = wrap(torch.zeros(3))
    part = base[1:]
    assert tangent(part) is None
    base.copy_(dual(torch.ones(3), torch.arange(3.0)))
    assert tangent(part) is tangent(part) and tangent(part).tolist() == [1.0, 2.0]


def test_a_tangent_goes_through_the_sparse_layout(level: None) -> None:
    """Which torch refuses."""
    x = torch.eye(3, dtype=torch.float64)
    close(unwrap(tangent(dual(x, 3 * x).to_sparse().to_dense() * 2)), 6 * x)


@pytest.mark.parametrize(
    "transform",
    [lambda f, x: runtime.func.jvp(f, (x,), (x,)), lambda f, x: runtime.func.vmap(f)(x)],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_a_transform_begun_while_forward_mode_is_off_leaves_it_off_for_dual_tensors(
    level: None, transform: Any, enabled: bool
) -> None:
    d, buffer, filled = (
        dual(torch.ones(2), torch.ones(2)),
        wrap(torch.zeros(2)),
        wrap(torch.zeros(2)),
    )

    def f(x: Any) -> Any:
        buffer.add_(d)
        if not enabled:
            torch.mul(d, 2, out=filled)  # which forward mode refuses
        return x * 2

    with fw._set_fwd_grad_enabled(enabled):
        transform(f, torch.ones(2, 2))
    assert (tangent(buffer) is not None) is enabled
    assert filled.tolist() == ([0.0, 0.0] if enabled else [2.0, 2.0])


def test_a_tangent_is_shared_with_nobody_else(level: None) -> None:
    d = dual(rand(2), torch.ones(2, dtype=torch.float64))
    y = d + 1  # the same tangent, and memory of its own
    y *= 3
    close(unwrap(tangent(d)), torch.ones(2, dtype=torch.float64))
    z = wrap(torch.zeros(2, dtype=torch.float64)).copy_(d)
    z *= 3
    close(unwrap(tangent(d)), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("way", ["aot_function", "aot_module", "jit"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_compiled_program_has_the_tangents_of_the_program(way: str, requires_grad: bool) -> None:
    def f(x: Any, y: Any) -> Any:
        return x.sin() * y

    class Module(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return f(x, y)

    compiled: Any = {  # type: ignore[no-untyped-call]
        "aot_function": lambda: aot.aot_function(f, aot.nop),
        "aot_module": lambda: aot.aot_module(Module(), aot.nop),
        "jit": lambda: runtime.jit(f),
    }[way]()
    x = runtime.tensor([1.0, 2.0], requires_grad=requires_grad)
    y = runtime.tensor([3.0, 4.0])
    compiled(x, y)  # compiled before there is a dual level
    with fw.dual_level():
        found = fw.unpack_dual(compiled(fw.make_dual(x, runtime.tensor([1.0, 0.5])), y)).tangent
        assert found is not None and found.requires_grad is requires_grad
        torch.testing.assert_close(
            runtime.unwrap(found.detach()),
            runtime.unwrap((x.cos() * runtime.tensor([1.0, 0.5]) * y).detach()),
        )
    assert fw.unpack_dual(compiled(x, y)).tangent is None
