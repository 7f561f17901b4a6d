"""The backward pass: what it computes, what it frees, how it nests and fails. Torch's
engine is the oracle."""

import contextlib
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from tests.runtime.of_torch import INPUTS_MAY_BE_A_DICTIONARY

from ..scenarios import OURS, outcome, same


def leaf(*values: float) -> Any:
    return OURS.tensor(list(values), requires_grad=True)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda lib, x: lib.tensor([1.0]).backward(),
        lambda lib, x: x.backward(),
        lambda lib, x: x.sum().backward(lib.tensor([1.0, 2.0])),
        lambda lib, x: (x.sum() * 1j).backward(),
        lambda lib, x: (x.sum() * 1j).backward(lib.tensor(1.0)),
        lambda lib, x: lib.autograd.backward([x.sum()], [3]),
        lambda lib, x: lib.autograd.backward([x.sum(), x.sum()], [None]),
        lambda lib, x: lib.autograd.backward(x.sum(), inputs=[]),
        lambda lib, x: lib.autograd.backward(x.sum(), inputs=[lib.tensor([1.0])]),
        lambda lib, x: lib.autograd.grad(x.sum(), []),
        lambda lib, x: lib.autograd.grad(x.sum(), lib.tensor([1.0])),
        lambda lib, x: lib.autograd.grad(x.sum(), 3),
        lambda lib, x: lib.autograd.grad(x.sum(), [3]),
        lambda lib, x: lib.autograd.grad(x.sum(), [x, lib.tensor([1.0], requires_grad=True)]),
        lambda lib, x: lib.autograd.grad(x.sum(), x, materialize_grads=True, allow_unused=False),
        lambda lib, x: lib.autograd.grad(x.sum(), x, lib.tensor(1.0 + 1j)),
    ],
)
def test_bad_calls_end_as_in_torch(misuse: Any) -> None:
    found = same(lambda lib: misuse(lib, lib.tensor([1.0, 2.0], requires_grad=True)))
    assert found[0] in ("RuntimeError", "TypeError", "ValueError")


def test_a_batch_of_cotangents_of_a_wrong_shape_is_refused() -> None:
    x = leaf(1.0, 2.0)
    found = r"grad_output\[0\] has a shape of torch.Size\(\[1\]\) and output\[0\] has .*\(\[2\]\)"
    with pytest.raises(
        RuntimeError,
        match=(
            r"we interpret the first dimension of each grad_output as "
            rf"the batch dimension.*{found}"
        ),
    ):
        OURS.autograd.grad(x * 1, x, OURS.tensor([[1.0], [2.0]]), is_grads_batched=True)


@pytest.mark.parametrize("deprecated", ["only_inputs", "grad_variables"])
def test_deprecated_arguments_warn(deprecated: str) -> None:
    x = leaf(1.0)
    with pytest.warns(FutureWarning, match=deprecated):
        if deprecated == "only_inputs":
            OURS.autograd.grad(x.sum(), x, only_inputs=False)
        else:
            OURS.autograd.backward(x.sum(), grad_variables=OURS.tensor(2.0))


def test_inputs_may_be_a_dict() -> None:
    def scenario(lib: Any) -> Any:
        named = {
            "a": lib.tensor([1.0], requires_grad=True),
            "b": lib.tensor([2.0], requires_grad=True),
        }
        loss = (named["a"] * named["b"]).sum()
        found = lib.autograd.grad(loss, named, retain_graph=True)
        lib.autograd.backward(loss, inputs=named)
        return found, named["a"].grad

    if INPUTS_MAY_BE_A_DICTIONARY:
        same(scenario)
        return
    assert outcome(scenario, OURS) == [{"a": [2.0], "b": [1.0]}, [2.0]]


def test_only_the_inputs_asked_for_get_gradients() -> None:
    def scenario(lib: Any) -> Any:
        x, y = (lib.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        between = x * y
        (between * y).sum().backward(inputs=[x, between])
        return x.grad, y.grad, between.grad, between.retains_grad

    assert same(scenario)[1] is None


def test_hooks_of_an_output_that_does_not_lead_to_the_inputs_do_not_run() -> None:
    def scenario(lib: Any) -> Any:
        x, y = (lib.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        ran: list[str] = []
        a, b = (x * 2).sum(), (y * 3).sum()
        for name, t in (("a", a), ("b", b), ("x", x), ("y", y)):
            t.register_hook(lambda g, name=name: ran.append(name))
        b.grad_fn.register_prehook(lambda gs: ran.append("node of b"))
        b.retain_grad()
        return lib.autograd.grad([a, b], x), ran, b.grad

    assert same(scenario)[1] == ["a", "x"]


def test_unused_inputs_are_none_or_zeros() -> None:
    def scenario(lib: Any) -> Any:
        x, y = (lib.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        loss = (x * 2).sum()
        grad = lib.autograd.grad
        zeros = grad(loss, (x, y), materialize_grads=True, create_graph=True)
        return grad(loss, (x, y), allow_unused=True), zeros, [z.requires_grad for z in zeros]

    same(scenario)


def test_a_batch_of_cotangents_is_one_pass() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        y = x**2
        eye = lib.tensor([[1.0, 0.0], [0.0, 1.0]])
        return lib.autograd.grad(y, x, eye, is_grads_batched=True, create_graph=True)

    assert same(scenario) == [[[2.0, 0.0], [0.0, 4.0]]]


@pytest.mark.parametrize("retain", [None, True])
def test_a_second_pass_needs_what_was_saved(retain: bool | None) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([2.0], requires_grad=True)
        y = x * x
        y.backward(retain_graph=retain)
        y.backward()
        return x.grad

    found = same(scenario)
    assert found == [8.0] if retain else "backward through the graph a second time" in found[1]


def test_a_graph_that_saved_nothing_runs_twice() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([2.0], requires_grad=True)
        y = x + 3
        y.backward()
        y.backward()
        return x.grad

    assert same(scenario) == [2.0]


WARNS_ONCE = """
import warnings
import pytest
import runtime

x = runtime.tensor([2.0], requires_grad=True)
with pytest.warns(UserWarning, match="reference cycle between the parameter and its gradient"):
    (x * x).backward(create_graph=True)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    (x * x).backward(create_graph=True)
    runtime.autograd.grad(x * x, x, create_graph=True)
assert x.grad.requires_grad
"""


def test_recording_the_pass_into_grad_warns_once_in_a_process_about_the_cycle() -> None:
    root = Path(runtime.__file__).parent.parent
    command = [sys.executable, "-c", WARNS_ONCE]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_complex_gradients_are_conjugate_and_of_real_inputs_real() -> None:
    def scenario(lib: Any) -> Any:
        z = lib.tensor([1.0 + 2.0j, 3.0 - 1.0j], requires_grad=True)
        r = lib.tensor([2.0, 3.0], requires_grad=True)
        (z * r * z).abs().sum().backward()
        return torch.view_as_real(z.grad.detach()), r.grad, str(r.grad.dtype)

    assert same(scenario)[2] == "torch.float32"


def test_undefined_gradients_stay_undefined() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
        a, b, _c = x.unbind()
        seen: list[Any] = []
        a.register_hook(seen.append)
        b.grad_fn.register_prehook(lambda gs: seen.append([g is None for g in gs]))
        b.backward()
        return x.grad, seen

    same(scenario)


def test_a_function_with_a_gradient_of_a_wrong_shape_is_named() -> None:
    def run(lib: Any) -> Any:
        class Wrong(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return torch.ones(5)

        Wrong.apply(lib.tensor([1.0, 2.0], requires_grad=True)).sum().backward()

    assert (
        "returned an invalid gradient at index 0 - got [5] but expected shape compatible with [2]"
        in same(run)[1]
    )


def test_an_error_in_a_hook_leaves_the_engine_usable() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0], requires_grad=True)
        y = x * x
        handle = y.register_hook(lambda g: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            y.backward(retain_graph=True)
        handle.remove()
        y.backward()
        return x.grad

    assert same(scenario) == [2.0]


def test_graphs_are_freed_by_reference_counting(without_collector: None) -> None:
    x = leaf(1.0, 2.0)
    gone = []
    for _ in range(2):
        y = x * x
        z = y.exp().view(2)
        z.register_hook(lambda g: None)
        z.retain_grad()
        y.add_(1)
        gone += [weakref.ref(t.grad_fn) for t in (y, z)] + [weakref.ref(y), weakref.ref(z)]
        (g,) = OURS.autograd.grad(z.sum(), x, create_graph=True)
        gone.append(weakref.ref(g.grad_fn))
        g.sum().backward()
    del y, z, g
    assert [r() for r in gone] == [None] * len(gone)


def test_a_failed_pass_holds_nothing(without_collector: None) -> None:
    x = leaf(1.0)
    y = x * 2
    gone = weakref.ref(y.grad_fn)
    y.register_hook(lambda g: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        y.backward()
    del y
    assert gone() is None


def test_long_chains_run_and_are_freed_without_recursion(without_collector: None) -> None:
    x = leaf(1.0)
    y = x
    for _ in range(50_000):
        y = y + 0
    first = weakref.ref(y.grad_fn)
    y.backward()
    assert x.grad.tolist() == [1.0]
    del y
    assert first() is None


def test_long_chains_of_recorded_gradients_are_freed_without_recursion(
    without_collector: None,
) -> None:
    x = leaf(1.0)
    y = x
    for _ in range(10_000):
        y = y * x
    (g,) = OURS.autograd.grad(y, x, create_graph=True)
    first = weakref.ref(g.grad_fn)
    del y, g
    assert first() is None


@pytest.mark.usefixtures("routed")
def test_a_pass_on_another_thread_is_its_own() -> None:
    ids: list[int] = []
    y = leaf(1.0) * 2

    def hook(g: Any) -> None:
        thread = threading.Thread(target=lambda: ids.append(torch._C._current_graph_task_id()))
        thread.start()
        thread.join()
        ids.append(torch._C._current_graph_task_id())

    y.register_hook(hook)
    y.backward()
    assert ids[0] == -1 and ids[1] >= 0


def test_no_cotangent_among_several_is_one_for_a_scalar_and_an_error_for_more() -> None:
    def of(lib: Any, whole: bool) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        first = x * 2 if whole else (x * 2).sum()
        return lib.autograd.grad([first, x * x], x, [None, lib.tensor([1.0, 10.0])])

    assert same(lambda lib: of(lib, whole=False)) == [[4.0, 42.0]]
    assert (
        same(lambda lib: of(lib, whole=True))[1]
        == "grad can be implicitly created only for scalar outputs"
    )


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_of_a_write_to_a_view_the_gradients_asked_for_are_those_of_the_whole(
    asked: tuple[int, ...],
) -> None:
    def scenario(lib: Any) -> Any:
        leaves = [
            lib.tensor([1.0, 2.0, 3.0], requires_grad=True),
            *(lib.tensor([v], requires_grad=True) for v in (4.0, 5.0)),
        ]
        x, v, w = leaves
        y = x * x
        y[:1].mul_(v)
        y[1:2].addcmul_(v, w)
        y[2:].copy_(w * v)
        return lib.autograd.grad((y * y).sum(), [leaves[i] for i in asked])

    same(scenario)


def test_a_result_that_is_no_floating_point_number_requires_no_gradient() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.5, 2.5], requires_grad=True)
        results = [
            x.long(),
            x.to(torch.bool),
            x.argmax(),
            x > 2,
            x.int() + 1,
            x.round().long(),
            *x.sort(),
        ]
        return [(t.requires_grad, t.grad_fn is None, t.is_leaf) for t in results]

    assert same(scenario)[:6] == [[False, True, True]] * 6


def test_a_cotangent_of_another_dtype_arrives_in_that_of_the_output() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        seen: list[str] = []
        y.register_hook(lambda g: seen.append(str(g.dtype)))
        for z in (y, y.clone()):
            lib.autograd.backward(z, lib.tensor([1.0, 10.0]).double(), retain_graph=True)
        return seen, x.grad, str(x.grad.dtype)

    assert same(scenario)[0] == ["torch.float32"] * 2


def test_a_view_taken_before_its_base_was_resized_still_writes_to_its_own_memory() -> None:
    def scenario(lib: Any) -> Any:
        base = lib.tensor([1.0, 2.0, 3.0, 4.0])
        view = base[2:]
        base.resize_(2, 2)
        x = lib.tensor([5.0, 6.0], requires_grad=True)
        view.mul_(x)
        (base * base).sum().backward()
        return base, x.grad

    assert same(scenario) == [[[1.0, 2.0], [15.0, 24.0]], [90.0, 192.0]]


def test_a_write_to_a_view_leads_to_the_base_and_to_what_is_written() -> None:
    def scenario(lib: Any) -> Any:
        x, w = lib.tensor([5.0, 6.0], requires_grad=True), lib.tensor([1.0], requires_grad=True)
        fresh, recorded, both = lib.tensor([0.0, 0.0]), x * 1, x * 1
        fresh[:1] = w * 2
        recorded[:1] = w * 2
        both[1:].addcmul_(w, w.exp())
        return [
            [None if node is None else node.name() for node, _ in t.grad_fn.next_functions]
            for t in (fresh, recorded, both)
        ]

    same(scenario)
