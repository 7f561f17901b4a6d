"""A jitted function computes what the function computes, and captures each kind of call once."""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import runtime
from runtime import jit
from runtime.aot import aot_function, nop
from runtime.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from runtime.jit import explain


def cubes(x: Any) -> Any:
    return (x.sin() * x**3).sum()


NESTINGS: dict[str, Callable[[Any], Any]] = {
    "grad": grad(cubes),
    "hessian": hessian(cubes),
    "jacrev of jacfwd": jacrev(jacfwd(lambda x: x.sin() * x)),
    "vmap of grad": vmap(grad(lambda x: x.sin() * x)),
    "vmap of grad of grad": vmap(grad(grad(lambda x: x.sin() * x))),
    "jvp": lambda x: jvp(cubes, (x,), (x * 2,)),
    "vjp": lambda x: vjp(lambda x: x.sin(), x)[1](x * 3),
}


@pytest.mark.parametrize("name", NESTINGS)
def test_transforms_are_captured_whole(name: str) -> None:
    f, compiled = NESTINGS[name], jit(NESTINGS[name])
    for n in (3, 3, 4, 5):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), f(x))
    assert [c.dynamic for c in explain(compiled).programs] == [False, True]


@pytest.mark.parametrize(
    "transform", [grad, hessian, lambda f: vmap(grad(f)), lambda f: jit(grad(f))]
)
def test_a_jitted_function_can_be_transformed(transform: Callable[[Any], Any]) -> None:
    x = torch.randn(2, 3)
    torch.testing.assert_close(transform(jit(cubes))(x), transform(cubes)(x))


OF_TORCH: dict[str, Callable[[Any], Any]] = {
    "grad": torch.func.grad(cubes),
    "grad of grad": torch.func.grad(lambda x: torch.func.grad(cubes)(x).sum()),
    "vmap of grad": torch.func.vmap(torch.func.grad(lambda x: x.sin() * x)),
    "hessian": torch.func.hessian(cubes),  # a sum of zeros without memory and of what has memory
    "jacrev": torch.func.jacrev(lambda x: x.sin() * x),
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](x),
    "beside a gradient of its own": lambda x: torch.func.grad(cubes)(x) + grad(cubes)(x),
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_transforms_of_torch_are_captured_like_any_function(name: str) -> None:
    f = OF_TORCH[name]
    jitted = jit(f)
    for _ in range(3):
        x = torch.randn(4)
        torch.testing.assert_close(jitted(x), f(x))


def test_gradients_flow_through_a_jitted_function_to_any_order() -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    (g,) = runtime.autograd.grad(jit(lambda x: (x**3).sum())(x), x, create_graph=True)
    (h,) = runtime.autograd.grad(g.sum(), x)
    assert g.tolist() == [3.0, 12.0] and h.tolist() == [6.0, 12.0]


def test_a_module_keeps_its_parameters_and_modes() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    compiled, x = jit(module), torch.ones(4, 2)
    compiled.eval()
    assert not module.training and torch.equal(
        runtime.unwrap(compiled(x)).detach(), module(x).detach()
    )
    compiled(x).sum().backward()
    assert module[0].weight.grad is not None and set(dict(compiled.named_parameters())) == {
        "_orig_mod.0.weight",
        "_orig_mod.0.bias",
    }


class TestArguments:
    def test_methods_and_decorators(self) -> None:
        class Scaled:
            factor = 2.0

            @jit
            def call(self, x: Any) -> Any:
                return x * self.factor

            @jit(dynamic=False)
            def twice(self, x: Any) -> Any:
                return x * 2 * self.factor

        s = Scaled()
        assert s.call(torch.ones(1)).item() == 2.0 and s.twice(torch.ones(1)).item() == 4.0
        s.factor = 3.0
        assert s.call(torch.ones(1)).item() == 3.0 and Scaled().call(torch.ones(1)).item() == 2.0

    def test_data_classes_dictionaries_and_strings(self) -> None:
        @dataclasses.dataclass
        class State:
            x: Any
            how: str

        f = jit(lambda s, d: State(s.x * d["k"] if s.how == "mul" else s.x + d["k"], s.how))
        for how, expected in (("mul", 6.0), ("add", 5.0)):
            assert f(State(torch.tensor(2.0), how), {"k": 3}).x.item() == expected

    def test_numbers_that_change_are_inputs_of_one_program(self) -> None:
        f = jit(lambda x, k: x * k)
        for k in (0.5, 1.5, 2.5, 3.5):
            assert f(torch.ones(1), k).item() == k
        assert len(explain(f).programs) == 2

    @pytest.mark.parametrize(
        "options", [{"static_argnums": 1}, {"static_argnames": "k"}, {"static_argnums": (-1,)}]
    )
    def test_static_arguments_are_constants(self, options: Any) -> None:
        def powers(x: Any, k: int) -> Any:
            for _ in range(k):
                x = x * x
            return x

        f = jit(powers, **options)
        two = torch.tensor([2.0])
        assert f(two, 1).item() == 4.0
        assert f(two, k=2).item() == 16.0
        assert f(x=two, k=3).item() == 256.0
        assert f(two, 1).item() == 4.0

    def test_what_is_no_function_is_refused(self) -> None:
        with pytest.raises(TypeError, match="jit takes a function or a module, not int"):
            jit(3)  # type: ignore[call-overload]

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"compiler": "fast"}, "compiler='fast'; it is 'replay', 'inductor'"),
            ({"on_break": "skip"}, "on_break='skip'"),
            ({"dynamic": "yes"}, "dynamic='yes'"),
            ({"static_argnums": 1}, "static_argnums=1, but cubes takes 1 positional arguments"),
        ],
    )
    def test_what_is_no_option_is_refused(self, options: Any, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            jit(cubes, **options)

    def test_a_static_argument_that_is_not_hashable_is_refused(self) -> None:
        with pytest.raises(TypeError, match="must be hashable"):
            jit(cubes, static_argnums=0)([1])


class TestSizes:
    @pytest.mark.parametrize(("dynamic", "kinds"), [(False, [False] * 3), (True, [True])])
    def test_never_and_at_once(self, dynamic: bool, kinds: list[bool]) -> None:
        f = jit(lambda x: x.sum(), dynamic=dynamic)
        for n in (2, 3, 4):
            assert f(torch.ones(n)).item() == n
        assert [c.dynamic for c in explain(f).programs] == kinds

    def test_a_program_that_asks_for_a_size_is_one_for_each(self) -> None:
        f = jit(lambda x: x * 2 if x.shape[0] > 3 else x * 5)
        for n, scale in {2: 5, 3: 5, 5: 2, 6: 2, 7: 2}.items():
            assert f(torch.ones(n))[0].item() == scale, n

    def test_a_program_without_a_graph_for_any_sizes_is_captured_for_each(self) -> None:
        f = jit(
            lambda x: (
                x.resize_(x.numel() + 1) * 0
                if int(x.shape[0]) == 1
                else x.view(int(x.shape[0]), 1) * 2
            )
        )
        assert [tuple(f(torch.ones(n)).shape) for n in (2, 3, 4)] == [(2, 1), (3, 1), (4, 1)]


class TestBreaks:
    def test_an_integer_of_elements_is_refused_with_its_line(self) -> None:
        f = jit(lambda x: x * x.sum().tolist())
        with pytest.raises(
            RuntimeError, match=r"asks for the elements of a tensor .* It happened at .*test_jit.py"
        ):
            f(torch.ones(1))

    def test_or_the_call_runs_eagerly(self) -> None:
        calls: list[float] = []

        def f(x: Any) -> Any:
            calls.append(1)
            return x * 2 if x.sum().tolist() > 0 else x

        g = jit(f, on_break="eager")
        with pytest.warns(UserWarning, match="cannot be captured, so that it runs eagerly"):
            assert g(torch.ones(1)).item() == 2.0
        # two eager calls; the try that failed has left nothing
        assert g(-torch.ones(1)).item() == -1.0 and len(calls) == 2


def test_what_is_told_of_calls_holds_neither_their_arguments_nor_dropped_programs() -> None:
    f = jit(lambda x: x * x.sum().tolist(), on_break="eager")
    x = torch.ones(3)
    seen = weakref.ref(x)
    with pytest.warns(UserWarning, match="cannot be captured"):
        f(x)
    f(x)
    del x
    gc.collect()
    assert seen() is None
    g = jit(lambda x, s: x * len(s), dynamic=False)
    with pytest.warns(UserWarning, match="more than 64 kinds of arguments"):
        for i in range(70):
            g(torch.ones(1), str(i))
    assert len(explain(g).programs) == 64


def test_threads_share_one_capture() -> None:
    traces: list[int] = []

    def f(x: Any) -> Any:
        traces.append(1)
        return x * 2

    g = jit(f, ignore=[traces])
    found: list[float] = []
    threads = [
        threading.Thread(target=lambda: found.append(g(torch.ones(1)).item())) for _ in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [2.0] * 8 and len(traces) == 1


@pytest.mark.parametrize(
    "f", [functools.partial(torch.mul, other=2), nn.Linear(3, 2)], ids=lambda f: type(f).__name__
)
def test_what_has_no_name_is_called_by_its_class(f: Any) -> None:
    jitted = jit(f)
    jitted(torch.ones(3))
    report = jit.explain(jitted)
    assert report.name == type(f).__name__ and len(report.programs) == 1
    assert report.name in repr(jitted) and report.name in str(report)


def test_a_compiler_of_the_users_gets_the_graph() -> None:
    graphs: list[Any] = []

    def compiler(module: Any, inputs: list[Any]) -> Any:
        graphs.append(module)
        return module.forward

    assert (
        jit(lambda x: x.sin() * 2, compiler=compiler)(torch.zeros(2)).tolist() == [0.0, 0.0]
        and len(graphs) == 1
    )


READERS: dict[str, Callable[[Any], Any]] = {
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.detach().numpy(),
    "numpy.asarray": np.asarray,
    "a function of numpy": lambda x: np.sin(x),
}


@pytest.mark.parametrize("f", READERS.values(), ids=READERS.keys())
def test_elements_as_a_list_or_an_array_are_refused_with_the_line(f: Any) -> None:
    def program(x: Any) -> Any:
        return f(x * 2)

    for wrap in (jit, lambda f: aot_function(f, nop)):
        with pytest.raises(
            RuntimeError,
            match=(
                r"(?s)(tolist|numpy)\(\) asks for the elements of a tensor.*Use tensor "
                r"operations.*test_jit\.py"
            ),
        ):
            wrap(program)(torch.ones(2))


def test_an_assignment_to_the_data_of_a_gradient_is_refused_with_what_to_write() -> None:
    weight: Any = torch.ones(2, requires_grad=True)

    def step(x: Any) -> None:
        (weight * x).sum().backward()
        weight.grad.data = weight.grad.clamp(-1, 1)

    with pytest.raises(
        RuntimeError,
        match=r"(?s)assigns to \.data of a tensor.*copy_\(\).*assign p\.grad = new.*test_jit\.py",
    ):
        jit(step)(torch.ones(2))


@pytest.mark.parametrize("wrap", [jit, lambda f: aot_function(f, nop)], ids=["jit", "aot_function"])
def test_a_parameter_that_a_program_returns_is_that_object(wrap: Any) -> None:
    weight, buffer = nn.Parameter(torch.ones(2)), torch.zeros(2)
    f = wrap(lambda x: (x, weight, buffer, x * weight))
    for x in (
        torch.ones(2, requires_grad=True),
        torch.ones(2),
        runtime.wrap(torch.ones(2), requires_grad=True),
    ):
        for _ in range(2):
            a, b, c, product = f(x)
            assert a is x and b is weight and c is buffer and product.requires_grad
    b.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [1.0, 1.0]
