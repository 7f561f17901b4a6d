"""Forward mode at level zero: dual tensors, their tangents, and what the tape sees of them."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad as oracle

import runtime
from runtime import unwrap, wrap
from runtime.autograd import forward_ad as fw
from runtime.autograd import grad

close = torch.testing.assert_close


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def level() -> Iterator[None]:
    with fw.dual_level():
        yield


def dual(x: torch.Tensor, t: torch.Tensor) -> Any:
    return fw.make_dual(wrap(x), wrap(t))


def tangent(v: Any) -> Any:
    return fw.unpack_dual(v).tangent


def through_torch(f: Callable[..., Any], x: torch.Tensor, t: torch.Tensor) -> tuple[Any, Any]:
    with oracle.dual_level():
        p, d = oracle.unpack_dual(f(oracle.make_dual(x.clone(), t.clone())))
        return p.detach().clone(), None if d is None else d.detach().clone()


# ---- levels


def test_levels_are_numbered_from_zero_and_do_not_nest() -> None:
    with fw.dual_level() as number:
        assert number == 0 == fw._current_level
        with pytest.raises(RuntimeError, match="Nested forward mode AD is not supported at the moment"):
            fw.enter_dual_level()
    assert fw._current_level == -1


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
    assert fw._current_level == -1


def test_make_dual_needs_a_level() -> None:
    with pytest.raises(RuntimeError, match="no level exists, make sure to enter_dual_level"):
        dual(rand(2), rand(2))


def test_unpacking_outside_of_a_level_gives_the_tensor_itself() -> None:
    x = wrap(rand(2))
    primal, t = fw.unpack_dual(x)
    assert primal is x and t is None


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


def test_a_tangent_lives_as_long_as_its_dual_tensor_within_a_level_and_no_longer_than_the_level() -> None:
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
            y = fw.make_dual(x, wrap(rand(2))).exp()  # the tape of its tangent leads back to y: a cycle that the level's end opens
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
    assert d.as_strided((5,), (1,), 0).shape == (5,)  # reaches past the primal, so there must be a tangent there
    close(unwrap(tangent(d.as_strided((5,), (1,), 0))), torch.cat([unwrap(t), torch.zeros(1, dtype=torch.float64)]))
    transposed = fw.make_dual(wrap(rand(2, 3).t()), wrap(rand(3, 2, seed=2)))
    assert tangent(transposed).stride() == transposed.stride()


@pytest.mark.parametrize("primal_bit", ["neither", "conj", "neg"])
@pytest.mark.parametrize("tangent_bit", ["neither", "conj", "neg"])
def test_lazy_bits_are_part_of_the_layout(level: None, primal_bit: str, tangent_bit: str) -> None:
    bits: dict[str, Callable[[Any], Any]] = {"neither": lambda x: x, "conj": lambda x: x.conj(), "neg": lambda x: x._neg_view()}
    x, t = bits[primal_bit](torch.randn(2, 3, dtype=torch.complex128)), bits[tangent_bit](torch.randn(2, 3, dtype=torch.complex128))
    given = wrap(t)
    d = fw.make_dual(wrap(x), given)
    assert (tangent(d) is given) == (primal_bit == tangent_bit)
    close(unwrap(tangent(d)).resolve_conj().resolve_neg(), t.resolve_conj().resolve_neg())
    close(unwrap(tangent(torch.real(d))).resolve_neg(), t.real.clone())
    close(unwrap(tangent(torch.imag(d))).resolve_neg(), t.imag.clone())


def test_what_cannot_be_a_dual_tensor_is_refused(level: None) -> None:
    x, t = wrap(rand(2)), wrap(rand(2, seed=1))
    d = fw.make_dual(x, t)
    with pytest.raises(RuntimeError, match=r"has a different size .* of size \[2\] while the given forward gradient is of size \[3\]"):
        fw.make_dual(x, wrap(rand(3)))
    with pytest.raises(ValueError, match=r"Expected tangent to be floating point or complex, but got: torch.int64"):
        fw.make_dual(x, wrap(torch.ones(2, dtype=torch.int64)))
    with pytest.raises(ValueError, match=r"Expected primal to be floating point or complex, but got: torch.int64"):
        fw.make_dual(wrap(torch.ones(2, dtype=torch.int64)), t)
    with pytest.raises(RuntimeError, match="based on a Tensor that already has a forward gradient at the same level"):
        fw.make_dual(d, t)
    with pytest.raises(RuntimeError, match="a forward grad that itself has a forward gradient at the same level"):
        fw.make_dual(x, d)
    with pytest.raises(RuntimeError, match="Invalid level given to _make_dual"):
        fw.make_dual(x, t, level=1)
    with pytest.raises(RuntimeError, match=r"dtype torch.float64 on cpu cannot have a tangent of dtype torch.float32"):
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
        with pytest.raises(NotImplementedError, match="Trying to use forward AD with add_out that does not support it"):
            torch.add(*args, out=out)


def test_an_op_without_a_rule_is_named(level: None) -> None:
    with pytest.raises(NotImplementedError, match=r"Trying to use forward AD with \w+ that does not support it: aten\.\w+.* has no jvp"):
        torch.ops.aten._foreach_norm.Scalar([dual(rand(2), rand(2))], 2)


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


def test_a_tangent_is_shared_with_nobody_else(level: None) -> None:
    d = dual(rand(2), torch.ones(2, dtype=torch.float64))
    y = d + 1  # the same tangent, and memory of its own
    y *= 3
    close(unwrap(tangent(d)), torch.ones(2, dtype=torch.float64))
    z = wrap(torch.zeros(2, dtype=torch.float64)).copy_(d)
    z *= 3
    close(unwrap(tangent(d)), torch.ones(2, dtype=torch.float64))


# ---- with the tape


def test_a_dual_tensor_is_a_view_of_its_primal_on_the_tape(level: None) -> None:
    x = wrap(rand(2), requires_grad=True)
    d = fw.make_dual(x, wrap(rand(2, seed=1)))
    assert d.requires_grad and d.grad_fn is not None and not d.is_leaf
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad is being used in an in-place operation"):
        d.mul_(2)
    (d * d).sum().backward()
    assert x.grad is not None
    close(unwrap(x.grad), 2 * unwrap(x.detach()))
    assert tangent(x.grad) is None, ".grad keeps no tangent"


def test_forward_over_reverse_gives_hessian_vector_products(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)

    def f(z: Any) -> Any:
        return (z.sin() * z[0] + z.prod()).sum()

    d = fw.make_dual(wrap(x, requires_grad=True), wrap(v))
    (g,) = grad(f(d), d)
    close(unwrap(tangent(g)), torch.autograd.functional.hvp(f, x, v)[1])
    (g,) = grad(f(d), d, create_graph=True)
    close(unwrap(tangent(g).detach()), torch.autograd.functional.hvp(f, x, v)[1])


def test_forward_over_reverse_through_writes_to_views(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)

    def f(z: Any) -> Any:
        y = z * z
        y[:2].mul_(z[1:])
        y.exp_()
        return y.sum()

    d = fw.make_dual(wrap(x, requires_grad=True), wrap(v))
    (g,) = grad(f(d), d)
    close(unwrap(tangent(g)), torch.autograd.functional.hvp(f, x, v)[1])


def test_reverse_over_forward_differentiates_tangents(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)
    leaf, direction = wrap(x, requires_grad=True), wrap(v, requires_grad=True)
    t = tangent((fw.make_dual(leaf, direction) ** 3).sin())
    assert t.requires_grad
    by_x, by_v = grad(t.sum(), (leaf, direction))
    close(unwrap(by_v), 3 * x**2 * (x**3).cos())
    close(unwrap(by_x), v * (6 * x * (x**3).cos() - 9 * x**4 * (x**3).sin()))


def test_tangents_of_writes_are_differentiated_too(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)

    def f(z: Any) -> Any:
        y = z * z
        y[:2].mul_(z[1:])
        return y

    leaf = wrap(x, requires_grad=True)
    t = tangent(f(fw.make_dual(leaf, wrap(v))))
    with oracle.dual_level():
        theirs = x.clone().requires_grad_()
        expected = torch.autograd.grad(oracle.unpack_dual(f(oracle.make_dual(theirs, v))).tangent.sum(), theirs)
    close(unwrap(grad(t.sum(), leaf)[0]), expected[0])


def test_three_derivatives_from_one_dual_level(level: None) -> None:
    """Reverse over forward over reverse: the gradient's tangent is on the tape."""
    x = torch.tensor(0.7, dtype=torch.float64)
    leaf = wrap(x, requires_grad=True)
    d = fw.make_dual(leaf, wrap(torch.ones_like(x)))
    (g,) = grad(d**4, d, create_graph=True)
    (third,) = grad(tangent(g), leaf)
    close(unwrap(third), 24 * x)


def test_gradients_of_other_inputs_carry_tangents(level: None) -> None:
    w = wrap(rand(3), requires_grad=True)
    d = dual(rand(3, seed=1), rand(3, seed=2))
    (g,) = grad((w * d).sin().sum(), w)
    plain_w, p, t = unwrap(w.detach()), rand(3, seed=1), rand(3, seed=2)
    close(unwrap(g), p * (plain_w * p).cos())
    close(unwrap(tangent(g)), t * (plain_w * p).cos() - p * plain_w * t * (plain_w * p).sin())


def test_a_dual_tensor_can_be_a_leaf(level: None) -> None:
    d = dual(rand(2), rand(2, seed=1)).requires_grad_()
    assert d.is_leaf
    (d * d).sum().backward()
    close(unwrap(d.grad), 2 * rand(2))


def test_a_backward_pass_on_dual_tensors_frees_what_was_saved(level: None) -> None:
    d = fw.make_dual(wrap(rand(2), requires_grad=True), wrap(rand(2)))
    y = (d * d).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_transforms_inside_a_level_see_tangents(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)
    d = dual(x, v)
    g = runtime.func.grad(lambda z: (z**3).sum())(d)
    close(unwrap(tangent(g)), 6 * x * v)
    rows = runtime.func.vmap(lambda z: z * z)(d)
    close(unwrap(tangent(rows)), 2 * x * v)


def test_a_batch_of_tangents_pushes_forward_under_vmap() -> None:
    x, tangents = rand(3), rand(5, 3, seed=1)

    def push(t: Any) -> Any:
        with fw.dual_level():
            return tangent((fw.make_dual(wrap(x), t).sin() * 2)[1:])

    close(unwrap(runtime.func.vmap(push)(tangents)), (tangents * 2 * x.cos())[:, 1:])


def test_a_batch_of_tangents_is_laid_out_like_its_primal() -> None:
    primal, batch = rand(2, 3).t(), rand(4, 3, 2, seed=1)

    def push(t: Any) -> Any:
        with fw.dual_level():
            d = fw.make_dual(wrap(primal), t)
            assert tangent(d).stride() == d.stride() == (1, 3)
            return tangent(d.as_strided((6,), (1,), 0))

    close(unwrap(runtime.func.vmap(push)(batch)), batch.transpose(1, 2).reshape(4, 6))


def test_as_strided_under_vmap_does_not_read_the_next_element_of_the_batch() -> None:
    with pytest.raises(RuntimeError, match=r"can access memory outside of `tensor`"):
        runtime.func.vmap(lambda x: x.as_strided((5,), (1,), 0))(rand(20)[:12].reshape(3, 4))


def test_where_the_derivative_vanishes_the_tangent_is_zeros() -> None:
    with fw.dual_level():
        x = fw.make_dual(runtime.tensor([1.0, -2.5]), runtime.tensor([1.0, 1.0]))
        for y in (x.floor(), torch.angle(x), torch.div(x, 2, rounding_mode="trunc")):
            tangent = fw.unpack_dual(y).tangent
            assert tangent is not None and tangent.tolist() == [0.0, 0.0]
        assert fw.unpack_dual(x.detach()).tangent is None


# ---- custom Functions


class Scaled(runtime.autograd.Function):
    """``x * k``, whose tangent and gradient are made by hand."""

    @staticmethod
    def forward(ctx: Any, x: Any, k: float) -> Any:
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.k, None

    @staticmethod
    def jvp(ctx: Any, t: Any, k: Any) -> Any:
        return t if ctx.k == 1 else t * ctx.k


def test_a_function_gives_its_own_tangents_and_the_tape_records_them(level: None) -> None:
    x, v = wrap(rand(2), requires_grad=True), wrap(rand(2, seed=1), requires_grad=True)
    y = Scaled.apply(fw.make_dual(x, v), 3.0)
    close(unwrap(tangent(y).detach()), 3 * unwrap(v.detach()))
    close(unwrap(grad(tangent(y).sum(), v)[0]), torch.full((2,), 3.0, dtype=torch.float64))
    (g,) = grad((y * y).sum(), x)
    close(unwrap(g), 18 * unwrap(x.detach()))
    close(unwrap(tangent(g)), 18 * unwrap(v.detach()))


def test_a_jvp_that_returns_what_it_was_given_shares_nothing(level: None) -> None:
    d = dual(rand(2), torch.ones(2, dtype=torch.float64))
    y = Scaled.apply(d, 1.0)
    y *= 5
    close(unwrap(tangent(d)), torch.ones(2, dtype=torch.float64))
    close(unwrap(tangent(y)), torch.full((2,), 5.0, dtype=torch.float64))


def test_jvp_sees_what_was_saved_for_it_alone(level: None) -> None:
    seen = []

    class Copy(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(len(ctx.saved_tensors))
            return g

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            seen.append(len(ctx.saved_tensors))
            return t

    Copy.apply(fw.make_dual(wrap(rand(2), requires_grad=True), wrap(rand(2)))).sum().backward()
    assert seen == [0, 1]


# ---- second derivatives against finite differences: for most of these torch 2.13 is wrong or refuses, so it cannot be the reference


def write_and_read(x: Any) -> Any:
    y = x * x
    y[0].mul_(y[1])
    y.t()[:2].exp_()
    return y


SMOOTH: list[Callable[..., Any]] = [
    lambda x: torch.nn.functional.layer_norm(x, (3,)),
    lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
    lambda x: torch.linalg.det(x),
    lambda x: torch.logdet(x @ x.t() + 1),
    lambda x: torch.as_strided_scatter(x, x[0, :2] * x[1, :2], (2,), (1,), 1),
    lambda x: torch.linalg.householder_product(x, x[0] * 0.3),
    lambda x: x.softmax(0).cumprod(1),
    lambda x: torch.fft.fft(x).abs(),
    write_and_read,
]


@pytest.mark.parametrize("f", SMOOTH)
def test_the_gradient_of_a_tangent_is_right(f: Callable[..., Any]) -> None:
    def push(x: Any, v: Any) -> Any:
        with fw.dual_level():
            return tangent(f(fw.make_dual(x, v)))

    assert runtime.autograd.gradcheck(push, (wrap(rand(3, 3), True), wrap(rand(3, 3, seed=1), True)))


@pytest.mark.parametrize("f", SMOOTH)
def test_the_tangent_of_a_gradient_is_right(f: Callable[..., Any]) -> None:
    assert runtime.autograd.gradgradcheck(f, wrap(rand(3, 3), True), check_fwd_over_rev=True)
