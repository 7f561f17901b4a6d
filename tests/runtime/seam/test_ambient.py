"""State around a computation belongs to a thread, and is restored after errors too."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime import checkpoint as ckpt
from runtime.autograd import forward_ad as fw
from runtime.autograd import graph

from ..scenarios import OURS


def in_another_thread(look: Callable[[], Any]) -> Any:
    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(look())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def tangent(x: Any) -> Any:
    return fw.unpack_dual(x).tangent


# --- dual levels


def test_another_thread_is_in_no_dual_level() -> None:
    with fw.dual_level():
        x = fw.make_dual(runtime.tensor([1.0, 2.0]), runtime.tensor([3.0, 4.0]))
        assert in_another_thread(fw.current_level) == -1
        assert in_another_thread(lambda: fw.unpack_dual(x).tangent) is None
        y = in_another_thread(lambda: x * 2)
        assert y.tolist() == [2, 4] and fw.unpack_dual(y).tangent is None, (
            "what another thread computes has no tangent"
        )
        assert tangent(x * 2).tolist() == [6, 8]


def test_the_class_of_the_session_is_the_same_inside_a_dual_level() -> None:
    level = runtime.tensor([1.0])._level
    before = type(level)
    with fw.dual_level():
        assert type(level) is before is type(runtime.tensor([1.0])._level)


def test_two_threads_are_in_dual_levels_of_their_own() -> None:
    shared = runtime.tensor([2.0])

    def square(seed: float) -> list[float]:
        with fw.dual_level():
            return list(tangent(fw.make_dual(shared, runtime.tensor([seed])) ** 2).tolist())

    with fw.dual_level():
        x = fw.make_dual(shared, runtime.tensor([1.0]))
        assert in_another_thread(lambda: square(10.0)) == [40]
        assert tangent(x**2).tolist() == [4], (
            "the end of another thread's level leaves this one's tangents alone"
        )


def test_a_write_in_anothers_level_leaves_this_ones_tangent_alone() -> None:
    shared = runtime.tensor([2.0])

    def write() -> None:
        with fw.dual_level():
            shared.mul_(fw.make_dual(runtime.tensor([1.0]), runtime.tensor([1.0])))

    with fw.dual_level():
        in_another_thread(write)
        assert fw.unpack_dual(shared).tangent is None


def test_an_error_ends_the_dual_level_and_a_second_one_can_be_entered() -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), fw.dual_level():
            raise ZeroDivisionError
        assert fw.current_level() == -1


def test_a_dual_level_as_a_decorator() -> None:
    @fw.dual_level()
    def slope(x: float) -> float:
        dual = fw.make_dual(runtime.tensor(x), runtime.tensor(1.0))
        return float(tangent(dual**3))

    assert slope(2.0) == 12 and fw.current_level() == -1


def test_backward_passes_deeper_than_a_helper_thread_see_the_dual_level() -> None:
    """Every 32nd nested pass runs on a thread of its own."""

    class Nested(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, depth: int) -> Any:
            ctx.save_for_backward(x)
            ctx.depth = depth
            return x.clone()

        @staticmethod
        def jvp(ctx: Any, t: Any, _: Any) -> Any:
            return t.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            seen.append((fw.current_level(), threading.current_thread()))
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                y = Nested.apply(leaf, ctx.depth - 1).sum() if ctx.depth else (leaf * leaf).sum()
            (inner,) = runtime.autograd.grad(y, leaf)
            return g * inner, None

    seen: list[Any] = []
    x = runtime.tensor([3.0], requires_grad=True)
    with fw.dual_level():
        Nested.apply(x, 70).sum().backward()
    assert len({thread for _, thread in seen}) > 1
    assert {level for level, _ in seen} == {0}


def test_all_state_of_threads_is_of_this_kind() -> None:
    """Else :func:`continued` would not take it along."""
    sources = Path(runtime.__file__).parent.rglob("*.py")
    made = re.compile(r"\(threading\.local\)|threading\.local\(")  # a class, or an object
    assert [path.name for path in sources if made.search(path.read_text("utf-8"))] == ["ambient.py"]


# --- forward mode switched off


def off() -> Any:
    return fw._set_fwd_grad_enabled(False)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: runtime.func.jvp(f, (x,), (torch.ones_like(x),))[1],
        lambda f, x: runtime.func.jacfwd(f)(x),
        lambda f, x: runtime.func.linearize(f, x)[1](torch.ones_like(x)),
        lambda f, x: runtime.func.vmap(runtime.func.jacfwd(f))(x.expand(2))[0],
        lambda f, x: runtime.func.jvp(
            lambda y: runtime.func.jvp(f, (y,), (torch.ones_like(y),))[0],
            (x,),
            (torch.ones_like(x),),
        )[1],
    ],
    ids=["jvp", "jacfwd", "linearize", "vmap of jacfwd", "jvp of jvp"],
)
def test_what_is_computed_while_forward_mode_is_off_is_constant(transform: Any) -> None:
    def f(x: Any) -> Any:
        with off():
            constant = x**2
        return x**2 - constant

    assert float(transform(f, torch.tensor(3.0))) == 6


def test_forward_mode_off_is_off_for_outer_transforms_too() -> None:
    def outer(y: Any) -> Any:
        def inner(z: Any) -> Any:
            with off():
                return (y * z) ** 2

        return runtime.func.jvp(inner, (torch.tensor(2.0),), (torch.tensor(1.0),))[0]

    assert runtime.func.jvp(outer, (torch.tensor(3.0),), (torch.tensor(1.0),))[1] == 0


def test_a_transform_turns_forward_mode_on_for_itself_alone() -> None:
    def cube(z: Any) -> Any:
        return z**3

    def outer(y: Any) -> Any:
        with off():
            return runtime.func.jvp(cube, (y,), (torch.ones_like(y),))

    (value, slope), tangents = runtime.func.jvp(outer, (torch.tensor(3.0),), (torch.tensor(1.0),))
    assert (value, slope, *tangents) == (27, 27, 0, 0)
    assert fw._is_fwd_grad_enabled()


def test_the_session_has_no_tangents_in_a_transform_that_began_with_forward_mode_off() -> None:
    with fw.dual_level():
        x = fw.make_dual(runtime.tensor(3.0), runtime.tensor(1.0))
        with off():
            _, slope = runtime.func.jvp(lambda z: z * x, (torch.tensor(2.0),), (torch.tensor(1.0),))
        assert fw.unpack_dual(slope).tangent is None
        assert (
            fw.unpack_dual(
                runtime.func.jvp(lambda z: z * x, (torch.tensor(2.0),), (torch.tensor(1.0),))[1]
            ).tangent
            == 1
        )


def test_a_view_taken_while_forward_mode_is_off_shows_the_tangent_of_its_base() -> None:
    """As in torch."""

    def f(x: Any) -> Any:
        with off():
            part = x[0]
        return part * 2

    assert runtime.func.jvp(f, (torch.ones(2),), (torch.ones(2),))[1] == 2
    with fw.dual_level():
        x = fw.make_dual(runtime.tensor([1.0, 2.0]), runtime.tensor([3.0, 4.0]))
        with off():
            part = x[1]
        assert fw.unpack_dual(part).tangent == 4


def test_a_write_while_forward_mode_is_off_leaves_the_tangent_alone() -> None:
    def f(x: Any) -> Any:
        y = x * 1
        with off():
            y.mul_(3)
            y.t_()
        return y

    value, tangent = runtime.func.jvp(f, (torch.ones(1, 2),), (torch.tensor([[1.0, 2.0]]),))
    assert value.tolist() == [[3], [3]] and tangent.tolist() == [[1], [2]]


def test_out_is_allowed_while_forward_mode_is_off() -> None:
    def f(x: Any) -> Any:
        with off():
            buffer = torch.empty(2)
            assert torch.mul(x, 2, out=buffer) is buffer
        return x * buffer

    assert runtime.func.jvp(f, (torch.ones(2),), (torch.ones(2),))[1].tolist() == [2, 2]


def test_a_function_runs_without_its_jvp_while_forward_mode_is_off() -> None:
    class Scaled(runtime.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return t * 5

    def f(x: Any) -> Any:
        with off():
            constant = Scaled.apply(x)
        return constant, Scaled.apply(x)

    _, (of_constant, of_other) = runtime.func.jvp(f, (torch.ones(()),), (torch.ones(()),))
    assert (of_constant, of_other) == (0, 5)
    with fw.dual_level():
        constant, other = f(fw.make_dual(runtime.tensor(1.0), runtime.tensor(1.0)))
        assert fw.unpack_dual(constant).tangent is None and fw.unpack_dual(other).tangent == 5


def test_forward_mode_is_as_it_was_after_an_error() -> None:
    def fails(x: Any) -> Any:
        torch._C._set_fwd_grad_enabled(False)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runtime.func.jvp(fails, (torch.ones(()),), (torch.ones(()),))
    assert fw._is_fwd_grad_enabled()
    with off():
        with pytest.raises(ZeroDivisionError):
            runtime.func.jvp(fails, (torch.ones(()),), (torch.ones(()),))
        assert not fw._is_fwd_grad_enabled()
    with fw.dual_level():
        dual = fw.make_dual(runtime.tensor(1.0), runtime.tensor(1.0))
        assert tangent(dual * 5) == 5


# --- policies of checkpoints and of saved tensors


def test_policies_of_checkpoints_are_the_threads() -> None:
    runs: list[int] = []

    def two_steps(x: Any) -> Any:
        y = x.sin().exp()
        runs.append(1)
        return y

    def run() -> int:
        runs.clear()
        x = OURS.tensor([1.0], requires_grad=True)
        ckpt.checkpoint(two_steps, x, use_reentrant=False).sum().backward()
        return len(runs)

    with (
        ckpt.set_checkpoint_early_stop(False),
        ckpt.set_checkpoint_debug_enabled(True),
        ckpt.GraphExecGroup(),
    ):
        assert run() == 2
        assert in_another_thread(run) == 1, "early stop is on in a thread that did not turn it off"
        with pytest.raises(RuntimeError, match="GraphExecGroup cannot be nested"):
            ckpt.GraphExecGroup().__enter__()
        with pytest.raises(ValueError, match="debug=True is incompatible"):
            ckpt.checkpoint(
                two_steps,
                torch.ones(1),
                use_reentrant=False,
                context_fn=lambda: ckpt.noop_context_fn(),
            )
        context = ckpt.noop_context_fn()
        x = OURS.tensor([1.0], requires_grad=True)
        in_another_thread(
            lambda: ckpt.checkpoint(two_steps, x, use_reentrant=False, context_fn=lambda: context)
        )

        def in_a_group() -> None:
            with ckpt.GraphExecGroup():
                pass

        in_another_thread(in_a_group)
    assert run() == 1


def test_the_innermost_wish_about_early_stop_wins_over_the_argument() -> None:
    def stopped(early_stop: bool) -> bool:
        done: list[int] = []

        def step(x: Any) -> Any:
            y = x.sin()
            done.append(1)
            return y

        x = OURS.tensor([1.0], requires_grad=True)
        ckpt.checkpoint(step, x, use_reentrant=False, early_stop=early_stop).sum().backward()
        return len(done) == 1

    assert stopped(True) and not stopped(False)
    with ckpt.set_checkpoint_early_stop(True):
        assert stopped(False)
    with ckpt.set_checkpoint_early_stop(False):
        assert not stopped(True)


def test_a_group_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), ckpt.GraphExecGroup():
        raise ZeroDivisionError
    with ckpt.GraphExecGroup():
        pass


def test_mutation_of_saved_tensors_is_allowed_to_one_thread() -> None:
    def in_a_context() -> None:
        with graph.allow_mutation_on_saved_tensors():
            pass

    with graph.allow_mutation_on_saved_tensors():
        in_another_thread(in_a_context)
        with pytest.raises(RuntimeError, match="cannot be nested"):
            in_a_context()
    with pytest.raises(ZeroDivisionError), graph.allow_mutation_on_saved_tensors():
        raise ZeroDivisionError
    in_a_context()
