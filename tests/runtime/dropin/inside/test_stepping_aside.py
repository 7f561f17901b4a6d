"""Standing aside for a capture: what the program reaches is plain in this thread during the
capture, and restored afterwards.

Inside: ``runtime.dropin.stepping_aside``. What lasts for the time of a capture is over when its
caller looks, and a program in it sees torch's own tensors whatever was exchanged for them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import runtime
from runtime import dropin
from runtime.autograd import Function
from runtime.dropin.patches import Patches
from runtime.dropin.stepping_aside import Exchange, RefuseSession, aside, standing_aside

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

OF_THE_MODULE = runtime.tensor([2.0, 3.0])
OTHER_OF_THE_MODULE = runtime.tensor([5.0])


def is_plain(t: Any) -> bool:
    return type(t) is torch.Tensor or type(t) is nn.Parameter


class TestAside:
    def test_is_known_within_in_this_thread_and_however_deep(self) -> None:
        patches, told = Patches(), list[bool]()
        assert not standing_aside()
        with aside(patches):
            with aside(patches):
                assert standing_aside()
            assert standing_aside()
            other = threading.Thread(target=lambda: told.append(standing_aside()))
            other.start()
            other.join()
        with pytest.raises(KeyError), aside(patches):
            raise KeyError
        assert not standing_aside() and told == [False]

    def test_is_known_in_a_thread_whose_first_capture_it_is(self) -> None:
        told: list[bool] = []

        def capture() -> None:
            told.append(standing_aside())
            with aside(Patches()):
                told.append(standing_aside())
            told.append(standing_aside())

        thread = threading.Thread(target=capture)
        thread.start()
        thread.join()
        assert told == [False, True, False]

    def test_functions_record_in_torch_in_this_thread_and_ours_in_others(self) -> None:
        class Tripled(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 3

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return 3 * g

        before, mine, made = (
            vars(Function)["apply"],
            runtime.tensor([1.0], requires_grad=True),
            list[Any](),
        )
        with aside(Patches()):
            y = Tripled.apply(torch.ones(1, requires_grad=True))
            other = threading.Thread(target=lambda: made.append(Tripled.apply(mine)))
            other.start()
            other.join()
        assert is_plain(y) and isinstance(made[0].grad_fn, runtime.autograd.graph.Node)
        assert (
            not isinstance(y.grad_fn, runtime.autograd.graph.Node)
            and y.grad_fn.name() == "TripledBackward"
        )
        assert vars(Function)["apply"] is before
        with pytest.raises(KeyError), aside(Patches()):
            raise KeyError
        assert vars(Function)["apply"] is before

    def test_a_function_of_torchs_has_the_methods_of_the_class_and_of_those_it_comes_from(
        self,
    ) -> None:
        class Scaled(Function):
            scale = 2

            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return Further.scale * g

        class Further(Scaled):
            scale = 7

            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * Scaled.scale

        x = torch.ones(1, requires_grad=True)
        ours = runtime.tensor([1.0], requires_grad=True)
        Further.apply(ours).backward()  # which makes the class one that has run here
        with aside(Patches()):
            for _ in range(2):
                x.grad = None
                y = Further.apply(x)
                y.backward()
        assert y.item() == 2.0 and x.grad is not None and x.grad.item() == ours.grad.item() == 7.0


class TestExchange:
    def test_a_plain_tensor_shares_memory_and_is_the_same_each_time(self) -> None:
        exchange = Exchange()
        x, frozen = (
            runtime.tensor([1.0, 2.0]),
            nn.Parameter(runtime.tensor([1.0]), requires_grad=False),
        )
        p, leaf = nn.Parameter(runtime.tensor([3.0])), runtime.tensor([4.0], requires_grad=True)
        for ours, kind, requires_grad in (
            (x, torch.Tensor, False),
            (frozen, nn.Parameter, False),
            (p, nn.Parameter, True),
            (leaf, torch.Tensor, True),
        ):
            plain = exchange.plain(ours)
            assert type(plain) is kind and plain.requires_grad is requires_grad and plain.is_leaf
            assert plain.data_ptr() == ours.data_ptr()
            assert exchange.plain(ours) is plain and exchange.session(plain) is ours

    def test_a_tensor_of_the_session_shares_memory_and_is_the_same_each_time(self) -> None:
        exchange = Exchange()
        for plain in (
            torch.ones(2),
            nn.Parameter(torch.ones(2)),
            nn.Parameter(torch.ones(2), requires_grad=False),
        ):
            ours = exchange.session(plain)
            assert isinstance(ours, runtime.Tensor) and isinstance(
                ours, nn.Parameter
            ) is isinstance(plain, nn.Parameter)
            assert ours.requires_grad is plain.requires_grad and ours.data_ptr() == plain.data_ptr()
            assert exchange.session(plain) is ours and exchange.plain(ours) is plain

    def test_anything_else_stays_as_it_is(self) -> None:
        exchange, plain, ours, buffer = (
            Exchange(),
            torch.ones(1),
            runtime.tensor([1.0]),
            nn.Buffer(torch.ones(1)).as_subclass(Named),
        )
        assert exchange.plain(plain) is plain and exchange.plain("word") == "word"
        assert (
            exchange.session(ours) is ours
            and exchange.session(buffer) is buffer
            and exchange.session(3) == 3
        )
        tree = {"a": [ours, (1, ours)]}
        assert exchange.session_tree(exchange.plain_tree(tree))["a"][1][1] is ours
        assert is_plain(exchange.plain_tree(tree)["a"][1][1])

    def test_under_a_mode_the_memory_is_the_same_too(self) -> None:
        ours = runtime.tensor([1.0])
        with FakeTensorMode(allow_non_fake_inputs=True):
            plain = Exchange().plain(ours)
        assert is_plain(plain) and plain.data_ptr() == ours.data_ptr()

    def test_a_module_gets_parameters_buffers_and_attributes_of_the_session(self) -> None:
        class Constant(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.constant, self.word = nn.BatchNorm1d(2), torch.ones(2), "word"

        module = Constant()
        assert module.layer.running_mean is not None
        exchange = Exchange()
        exchange.session_module(module)
        reached = [module.layer.weight, module.layer.running_mean, module.constant]
        assert all(isinstance(t, runtime.Tensor) for t in reached) and module.word == "word"
        assert isinstance(module.layer.weight, nn.Parameter) and not isinstance(
            module.constant, nn.Parameter
        )


class Named(torch.Tensor):
    pass


class Holder:
    def __init__(self, t: Any) -> None:
        self.t = t

    def method(self) -> Any:
        return self.t


def of_a_global() -> Any:
    return OF_THE_MODULE


def of_a_global_in_a_function_within() -> Any:
    def inner() -> Any:
        return OF_THE_MODULE

    return inner()


def calling_another() -> Any:
    return of_a_global()


def programs(t: Any) -> dict[str, tuple[Any, Callable[[], Any]]]:
    """By the place of ``t``: a program, and what is there."""

    def closure() -> Any:
        return t

    def deeper() -> Any:
        return closure()

    def default(x: Any = t) -> Any:
        return x

    def keyword(*, x: Any = t) -> Any:
        return x

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Module()
            self.inner.constant = t
            self.items = {"a": [t]}

    deep, holder, listed, mapped = Deep(), Holder(t), [1, t], {"a": t}
    twice = Holder(Holder(t))
    inner: Any = deep.inner
    return {
        "a closure": (closure, closure),
        "the closure of a function in a closure": (deeper, deeper),
        "a list": (listed, lambda: listed[1]),
        "a dictionary": (mapped, lambda: mapped["a"]),
        "a list in a tuple": ((1, [listed]), lambda: listed[1]),
        "an attribute": (holder, holder.method),
        "an attribute of an attribute": (twice, twice.t.method),
        "a bound method's object": (holder.method, holder.method),
        "a module below": (deep, lambda: inner.constant),
        "a container of a module": (deep, lambda: deep.items["a"][0]),
        "the arguments of a partial": (functools.partial(keyword_of, listed), lambda: listed[1]),
        "the keywords of a partial": (
            functools.partial(keyword_of, listed=listed),
            lambda: listed[1],
        ),
        "the function of a partial": (functools.partial(closure), closure),
        "a default that is a list": (lambda x=listed: x, lambda: listed[1]),
        "a keyword's default that is a list": (keyword_of(listed), lambda: listed[1]),
    }


def keyword_of(listed: list[Any]) -> Any:
    def keyword(*, x: Any = listed) -> Any:
        return x

    return keyword


class TestLent:
    @pytest.mark.parametrize("place", programs(None))
    def test_what_a_program_reaches_is_plain_and_then_what_it_was(self, place: str) -> None:
        t = runtime.tensor([1.0])
        program, look = programs(t)[place]
        exchange = Exchange()
        with exchange.lent(program):
            assert look() is exchange.plain(t) is not t
        assert look() is t
        with pytest.raises(KeyError), exchange.lent(program):
            raise KeyError
        assert look() is t

    @pytest.mark.parametrize(
        "program", [of_a_global, of_a_global_in_a_function_within, calling_another]
    )
    def test_globals_that_a_function_uses_are_plain_and_no_others(
        self, program: Callable[[], Any]
    ) -> None:
        with Exchange().lent(program):
            assert is_plain(program()) and is_plain(OF_THE_MODULE)
            assert not is_plain(OTHER_OF_THE_MODULE)
        assert program() is OF_THE_MODULE and not is_plain(OF_THE_MODULE)

    def test_parameters_and_buffers_of_several_programs(self) -> None:
        module = nn.BatchNorm1d(2)
        with dropin.installed():
            layer, norm = nn.Linear(1, 1), nn.BatchNorm1d(2)
        before: list[Any] = [layer.weight, norm.weight, norm.running_mean]
        with Exchange().lent(module, layer, layer, norm):
            assert all(
                is_plain(t) for t in (layer.weight, norm.weight, norm.running_mean, module.weight)
            )
        assert all(
            a is b
            for a, b in zip(before, [layer.weight, norm.weight, norm.running_mean], strict=True)
        )

    def test_what_the_capture_sets_stays(self) -> None:
        holder, listed = Holder(runtime.tensor([1.0])), list[Any]([runtime.tensor([2.0])])
        with Exchange().lent(holder, listed):
            holder.t = "new"
            listed[0] = "new"
        assert holder.t == "new" and listed == ["new"]

    def test_programs_that_reach_themselves_or_a_name_that_is_not_bound_yet(self) -> None:
        holder = Holder(runtime.tensor([1.0]))
        holder.itself = [holder]  # type: ignore[attr-defined]

        def early() -> Any:
            return late

        with Exchange().lent(holder, early):
            late = 1
        assert early() == late and not is_plain(holder.t)

    def test_functions_of_torch_and_scripts_are_left_alone(self) -> None:
        t = runtime.tensor([1.0])
        held = Holder(t)

        def of_torch() -> Any:
            return t

        of_torch.__module__ = "torch.nn.functional"
        script = torch.jit.script(nn.Linear(1, 1))
        for program in (of_torch, Holder, torch, script, None, 3):
            with Exchange().lent(program):
                assert of_torch() is t and held.t is t


@pytest.mark.usefixtures("routed")
def test_a_tensor_of_the_session_is_refused_wherever_a_call_has_it() -> None:
    ours, plain = runtime.tensor([1.0]), runtime.unwrap(torch.ones(1))
    with RefuseSession("the capture"):
        assert torch.add(plain, plain, alpha=2).item() == 3.0
        calls: list[Callable[[], Any]] = [
            lambda: torch.add(plain, ours),
            lambda: torch.cat([plain, ours]),
        ]
        calls.append(lambda: torch.add(plain, other=ours))
        for call in calls:
            with pytest.raises(
                RuntimeError, match=r"runtime\.dropin: the capture met a tensor in a place"
            ):
                call()
