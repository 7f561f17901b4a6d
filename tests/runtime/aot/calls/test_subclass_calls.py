"""Compiled programs of tensors that consist of other tensors. Expected values are those of torch's
eager mode on the same class."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    SubclassSymbolicContext,
)
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import runtime
from runtime import tensor
from runtime.aot import (
    aot_function,
    aot_module,
    aot_module_simplified,
    explain,
    min_cut_rematerialization_partition,
    nop,
)
from runtime.errors import NestedTensor
from tests.runtime.aot.subclass_helpers import (
    Opaque,
    Scaled,
    as_eager,
    as_in_torch,
    compiled,
    nested,
    numbers,
    parts,
    same,
    two,
)


def one(shape: Any) -> list[Any]:
    return [two(shape)]


def written(x: Any) -> Any:
    x.mul_(2)
    return x + 1


def written_in_part(x: Any) -> Any:
    x[0].add_(1)
    return x * 3


def written_unseen(x: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x * 3


def reshaped(x: Any) -> Any:
    x.t_()
    return x * 2


def reshaped_and_written(x: Any) -> Any:
    x.unsqueeze_(0)
    x.mul_(3)
    return x + 1


PROGRAMS = {
    "elementwise": lambda x: (x.sin() * 2, x.sum()),
    "softmax": lambda x: (x.softmax(-1), x.max(dim=0).values),
    "factories": lambda x: x + torch.ones(3),
    "structure": lambda x: {"a": [x * 2, None, 3], "b": (x + 1,)},
    "several": lambda x: x.unbind(1)[0] * x.unbind(1)[1],
    "transposed": lambda x: (x * 2).t(),
    "argument": lambda x: x,
    "views of the argument": lambda x: (x.view(-1), x[0]),
    "views of a result": lambda x: ((y := x * 2).view(-1), y[0], y),
    "written": written,
    "written in part": written_in_part,
    "written unseen": written_unseen,
    "reshaped": reshaped,
    "reshaped and written": reshaped_and_written,
}


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_a_subclass_is_as_in_torch(program: str, make: Any) -> None:
    as_in_torch(PROGRAMS[program], lambda: [make()])


@pytest.mark.parametrize(
    "program",
    [
        "elementwise",
        "views of the argument",
        "views of a result",
        "written in part",
        "reshaped and written",
    ],
)
def test_one_dynamic_program_of_a_subclass_is_for_all_sizes(program: str) -> None:
    runs: list[None] = []

    def f(x: Any) -> Any:
        runs.append(None)
        return PROGRAMS[program](x)

    g = compiled(f, dynamic=True, ignore=[runs])
    for shape in ((2, 3), (4, 5), (6, 2)):
        before = len(runs)
        g(two(shape))
        assert (len(runs) > before) == (shape == (2, 3))
        as_eager(compiled(PROGRAMS[program], dynamic=True), PROGRAMS[program], partial(one, shape))


def test_min_cut_saves_parts() -> None:
    as_in_torch(
        lambda x: x.sin().exp(), lambda: [two()], partition_fn=min_cut_rematerialization_partition
    )


def test_the_gradient_of_a_plain_tensor_that_meets_a_subclass_is_a_subclass() -> None:
    as_in_torch(lambda x, w: (x * w, w + 1, (x.t() @ w).sum()), lambda: [two(), numbers((2, 3), 7)])
    w = tensor([1.0, 2.0], requires_grad=True)
    x = TwoTensor(torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0]))
    (g,) = runtime.autograd.grad(compiled(lambda x, w: x * w)(x, w), w, x)
    assert same(g, TwoTensor(torch.tensor([9.0, 16.0]), torch.tensor([25.0, 36.0])))


def test_a_nested_subclass_meets_a_plain_one_of_another_depth() -> None:
    as_in_torch(
        lambda x, y, w: (x * 2 + w, y * w), lambda: [nested(), two(seed=5), numbers((2, 3), 9)]
    )


def test_the_graph_takes_and_gives_plain_tensors_alone() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def seen(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        assert {type(x) for x in inputs} == {torch._subclasses.FakeTensor}
        return nop(graph, inputs)

    x = runtime.wrap(nested(), requires_grad=True)
    out = aot_function(lambda x, w: x * w, seen)(x, torch.ones(3))
    out.sum().backward(torch.ones_like(out.sum().detach()))
    forward, backward = graphs
    assert [n.name for n in forward.graph.nodes if n.op == "placeholder"] == [
        f"primals_{i}" for i in range(1, 6)
    ]
    assert [n.name for n in backward.graph.nodes if n.op == "placeholder"][-4:] == [
        f"tangents_{i}" for i in range(1, 5)
    ]
    assert [str(n.target) for n in forward.graph.nodes if n.op == "call_function"] == [
        "aten.mul.Tensor"
    ] * 4
    assert {type(v) for v in parts(out) + parts(x.grad) if not isinstance(v, str)} == {torch.Tensor}


def test_a_missing_cotangent_of_a_subclass_counts_as_zeros() -> None:
    for dynamic in (False, True):
        x = runtime.wrap(two(), requires_grad=True)
        first, _ = compiled(lambda x: (x * 2, x.sin()), dynamic=dynamic)(x)
        (g,) = runtime.autograd.grad(first, x, two(seed=4))
        assert same(g, two(seed=4) * 2)


def test_draws_of_a_subclass_are_torchs() -> None:
    def f(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5)

    torch.manual_seed(0)
    expected = f(two())
    torch.manual_seed(0)
    assert same(compiled(f)(two()), expected)


def test_a_program_may_make_a_subclass() -> None:
    def made(x: Any, w: Any) -> Any:
        y = TwoTensor(x.detach(), x.detach() * 2)
        return y * w, y

    for dynamic in (False, True):
        as_in_torch(made, lambda: [numbers((2, 3)), two(seed=5)], dynamic=dynamic)
    x = torch.ones(2)
    y = compiled(lambda x: TwoTensor(x, torch.zeros(2)))(x)
    assert y.a.data_ptr() == x.data_ptr() and same(y, TwoTensor(torch.ones(2), torch.zeros(2)))


# which program a call finds


def count_of_programs(f: Any) -> tuple[Any, list[None]]:
    runs: list[None] = []

    def counted(*args: Any) -> Any:
        runs.append(None)
        return f(*args)

    return compiled(counted, ignore=[runs]), runs


def test_another_class_or_depth_is_another_program() -> None:
    f, runs = count_of_programs(torch.sin)
    for t in (
        two(),
        two(seed=3),
        numbers((2, 3)),
        nested(),
        nested(seed=3),
        two(),
        Scaled(numbers((2, 3)), 1),
    ):
        f(t)
    assert len(runs) == 4


def test_another_context_is_another_program() -> None:
    f, runs = count_of_programs(torch.sin)
    x: Any
    for scale in (2, 2, 3, {"by": 2}, {"by": 3}, {"by": 3}, 2.0, -0.0, 0.0 + 2):
        x = Scaled(torch.tensor([1.0, 2.0]), scale or 5)
        assert torch.allclose(f(x).elements, x.sin().elements)
    assert len(runs) == 6  # 2, 3, {2}, {3}, 2.0, and 5


def test_a_context_that_changes_in_place_is_another_program() -> None:
    f, runs = count_of_programs(torch.sin)
    x: Any = Scaled(torch.tensor([1.0, 2.0]), {"by": 2})
    first = f(x)
    x.scale["by"] = 4
    assert torch.allclose(f(x).elements, x.sin().elements) and len(runs) == 2
    assert first.scale == {"by": 2}


def test_a_class_may_say_which_contexts_are_one() -> None:
    class Named(Scaled):
        @classmethod
        def __metadata_guard__(cls, a: Any, b: Any) -> bool:
            return bool(a["by"] == b["by"])

    f, runs = count_of_programs(lambda x: x.detach())
    for scale in ({"by": 2, "name": "x"}, {"by": 2, "name": "y"}, {"by": 3, "name": "x"}):
        f(Named(torch.ones(2), scale))
    assert len(runs) == 2


def test_other_strides_of_a_part_are_another_program() -> None:
    f, runs = count_of_programs(lambda x: x.reshape(-1).add_(1))
    f(two())
    f(two((3, 2)).t())
    assert len(runs) == 2


# tensors from outside


def test_a_subclass_that_is_closed_over_gets_its_gradient_and_its_writes() -> None:
    w = runtime.wrap(two(), requires_grad=True)
    out = compiled(lambda x: x * w)(numbers((2, 3), 5))
    assert same(runtime.autograd.grad(out, w, two(seed=8))[0], two(seed=8) * numbers((2, 3), 5))
    b = two()

    def f(x: Any) -> Any:
        b.add_(1)
        return x * b

    g = compiled(f)
    for n in (1, 2):
        assert same(g(two(seed=5)), two(seed=5) * (two() + n))
        assert same(b, two() + n)


def test_a_parameter_that_is_a_subclass_gets_its_gradient() -> None:
    model = torch.nn.Linear(3, 2, bias=False)
    model.weight = torch.nn.Parameter(two())
    x = numbers((4, 3))
    simplified: Any = aot_module_simplified(Tupled(model), (x,), nop)
    runs: tuple[Any, ...] = (aot_module(model, nop), lambda x: simplified(x)[0])
    for run in runs:
        model.weight.grad = None
        out = run(x)
        assert same(out, torch.nn.functional.linear(x, two()))
        out.sum().backward(torch.ones_like(out.sum().detach()))
        assert same(model.weight.grad, TwoTensor(x.sum(0).expand(2, 3), x.sum(0).expand(2, 3)))


class Tupled(torch.nn.Module):
    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Any) -> Any:
        return (self.inside(x),)


def test_the_one_program_of_a_module_refuses_another_class_by_the_arguments_number() -> None:
    run = aot_module_simplified(Tupled(torch.nn.Identity()), (two(),), nop)
    assert same(run(two(seed=3))[0], two(seed=3))
    for other in (numbers((2, 3)), nested(), Scaled(numbers((2, 3)), 2)):
        with pytest.raises(
            AssertionError, match="argument 0 is of another kind than at compilation time"
        ):
            run(other)


@pytest.mark.parametrize("make", [two, nested])
def test_examples_of_a_subclass_may_be_fake(make: Any) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
    fake = mode.from_tensor(
        make((4, 5)), source=ConstantSource("x"), symbolic_context=symbolic(make((4, 5)))
    )
    run: Any = aot_module_simplified(Tupled(torch.nn.Softmax(1)), (fake,), nop)
    # torch fixes the sizes of a part that has parts
    for shape in ((4, 5), (6, 7))[: 2 if make is two else 1]:
        assert same(run(make(shape))[0], make(shape).softmax(1))
    for other in (numbers((4, 5)), nested((4, 5)) if make is two else two((4, 5))):
        with pytest.raises(AssertionError, match="argument 0 is not like its example"):
            run(other)


def symbolic(t: Any) -> Any:
    """Every size of a subclass and of its parts is a symbol of its own."""
    sizes: dict[str, Any] = {"dynamic_sizes": [DimDynamic.DYNAMIC] * t.dim()}
    if not isinstance(t, TwoTensor):
        return StatelessSymbolicContext(**sizes)
    return SubclassSymbolicContext(
        **sizes,
        tensor_source=ConstantSource("x"),
        inner_contexts={name: symbolic(getattr(t, name)) for name in ("a", "b")},
    )


# what shares memory


def test_one_subclass_that_is_given_twice_is_one_argument() -> None:
    def f(a: Any, b: Any) -> Any:
        a.mul_(2)
        return b + 1

    x = two()
    assert same(compiled(f)(x, x), two() * 2 + 1) and same(x, two() * 2)


def test_a_write_to_parts_that_share_memory_is_refused() -> None:
    def f(a: Any, b: Any) -> Any:
        a.mul_(2)
        return b + 1

    x, t = two(), torch.ones(2, 3)
    for args in (
        (x, x[0]),
        (x, x.a),
        (x.a, x),
        (TwoTensor(t, t), torch.ones(2, 3)),
        (TwoTensor(x, x), x),
    ):
        with pytest.raises(
            RuntimeError,
            match=(
                "aliased inputs that are mutated in the graph, but one of them is a tensor subclass"
            ),
        ):
            compiled(f)(*args)
    assert same(x, two()) and t.equal(torch.ones(2, 3))


def test_parts_that_share_memory_may_be_read() -> None:
    x, t = two(), torch.ones(2, 3)
    assert same(compiled(lambda a, b: a + b)(x, x.a), x + x.a)
    assert same(compiled(lambda a: a + 1)(TwoTensor(t, t)), TwoTensor(t + 1, t + 1))


def test_a_write_between_forward_and_backward_is_noticed() -> None:
    def argument(x: Any, out: Any) -> Any:
        return x

    def result(x: Any, out: Any) -> Any:
        return out

    for f, target in (
        (torch.sin, argument),
        (torch.exp, result),
        (torch.exp, lambda x, out: out[0]),
    ):
        x = runtime.wrap(two(), requires_grad=True) * 1
        out = compiled(f)(x)
        with torch.no_grad():
            target(x, out).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward(torch.ones_like(out.sum().detach()))


def test_a_write_to_what_only_sizes_are_saved_of_is_none() -> None:
    x = runtime.wrap(two(), requires_grad=True) * 1
    out = compiled(
        lambda x: x.sum(0), dynamic=True, partition_fn=min_cut_rematerialization_partition
    )(x)
    with torch.no_grad():
        x.mul_(2)
    (g,) = runtime.autograd.grad(out, x, two((3,)))
    assert same(g, TwoTensor(two((3,)).a.expand(2, 3), two((3,)).b.expand(2, 3)))


# what is refused


def test_a_cotangent_of_another_class_is_refused() -> None:
    x, w = (
        runtime.wrap(two(), requires_grad=True),
        runtime.wrap(numbers((2, 3)), requires_grad=True),
    )
    f = compiled(lambda x, w: (x * w, w * 2))
    with pytest.raises(
        RuntimeError, match=r"takes a cotangent that is a TwoTensor.*got a plain tensor"
    ):
        runtime.autograd.backward(f(x, w)[0], torch.ones(2, 3))
    with pytest.raises(
        RuntimeError, match=r"takes a cotangent that is a plain tensor.*got a TwoTensor"
    ):
        runtime.autograd.backward(f(x, w)[1], two())


def test_a_class_may_convert_its_cotangents() -> None:
    class Coerced(Scaled):
        def __coerce_same_metadata_as_tangent__(self, scale: Any, kind: Any = None) -> Any:
            return Scaled(self.elements * self.scale / scale, scale)

    x = runtime.wrap(Scaled(torch.tensor([1.0, 2.0]), 2), requires_grad=True)
    out = compiled(lambda x: x * 3)(x)
    (g,) = runtime.autograd.grad(out, x, Coerced(torch.tensor([1.0, 2.0]), 6))
    assert g.scale == 2 and g.elements.tolist() == [9.0, 18.0]


class Answers(Scaled):
    """Converts a cotangent to what it is told to give, and notes what it was asked for."""

    asked: list[Any]
    answer: Any

    def __coerce_same_metadata_as_tangent__(self, *asked: Any) -> Any:
        self.asked.append(asked)
        return self.answer

    @staticmethod
    def __tensor_unflatten__(inner: Any, scale: Any, size: Any, stride: Any) -> Scaled:
        return Answers(inner["elements"], scale)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        out = super().__torch_dispatch__(func, types, args, kwargs)
        return pytree.tree_map_only(Scaled, lambda t: Answers(t.elements, t.scale), out)


AS_RESULTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "of another context": (Answers(torch.ones(2), 2), (2,)),
    "of another class": (Scaled(torch.ones(2), 2), (2, Scaled)),
    "a plain one": (torch.ones(2), (None, torch.Tensor)),
}


@pytest.mark.parametrize("name", AS_RESULTS)
def test_a_class_is_asked_for_the_context_and_for_another_class(name: str) -> None:
    result, asked = AS_RESULTS[name]
    x = runtime.wrap(result, requires_grad=True)
    f = compiled(lambda x, of_a_class: (x * 3, of_a_class * 2))
    given: Any = Answers(torch.ones(2), 3)
    given.asked, given.answer = [], result

    def gradient(g: Any) -> Any:
        (found,) = runtime.autograd.grad(f(x, Scaled(torch.ones(2), 7))[0], x, g)
        return runtime.unwrap(found)

    expected = gradient(result)
    assert given.asked == []
    assert same(gradient(given), expected) and given.asked == [asked]
    for wrong in (None, Answers(torch.ones(2), 5)):
        given.answer = wrong
        with pytest.raises(
            RuntimeError, match="a tensor subclass where we guessed its metadata incorrectly"
        ):
            gradient(given)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_zeros_for_a_cotangent_have_the_sizes_and_dtypes_of_its_parts(device: str) -> None:
    part = torch.ones(2, 3, dtype=torch.float64, device=device)
    x = runtime.wrap(TwoTensor(part, part * 2), requires_grad=True)
    used, _ = compiled(lambda x: (x * 3, x.exp()))(x)
    (found,) = runtime.autograd.grad(used, x, TwoTensor(part, part))
    made: Any = runtime.unwrap(found)
    for p in (made.a, made.b):
        assert (p.shape, p.dtype, p.device) == (part.shape, part.dtype, part.device)
        assert device == "meta" or p.tolist() == [[3.0] * 3] * 2


def test_a_cotangent_may_have_parts_that_lie_in_another_order() -> None:
    x, g = runtime.wrap(two((2, 3)), requires_grad=True), two((3, 2)).t()
    (found,) = runtime.autograd.grad(compiled(lambda x: x.view(6).view(2, 3) * 2)(x), x, g)
    assert not g.is_contiguous() and same(found, g * 2)


def test_a_gradient_is_by_a_subclass_as_it_was_before_the_program_wrote_to_it() -> None:
    def f(x: Any, state: Any) -> Any:
        y = (x * state.square()).sum()
        state.add_(1)
        return y

    x, state = runtime.wrap(two(), requires_grad=True), two(seed=5)
    before = state.clone()
    # which keeps the state
    compiled(f, partition_fn=min_cut_rematerialization_partition)(x, state).backward()
    assert same(x.grad, before * before) and same(state, before + 1)


def test_a_subclass_that_does_not_say_what_it_consists_of_is_refused_by_name() -> None:
    x = Opaque(torch.ones(2))
    for f, args in ((torch.sin, (x,)), (lambda: x.sin(), ()), (torch.sin, (TwoTensor(x, x),))):
        with pytest.raises(
            RuntimeError,
            match=(
                r"a Opaque is among the arguments or closed-over tensors.*Give "
                r"it __tensor_flatten__"
            ),
        ):
            compiled(f)(*args)


def test_a_nested_tensor_is_refused_as_anywhere() -> None:
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    with pytest.raises(NestedTensor):
        compiled(torch.sin)(x)


def test_a_subclass_that_the_program_makes_of_tensors_that_require_grad_is_refused() -> None:
    for f in (lambda x: TwoTensor(x, x * 2) + 1, lambda x: TwoTensor(x, x * 2)):
        with pytest.raises(
            RuntimeError,
            match="makes a TwoTensor of tensors that require grad, and the derivative ends there",
        ):
            compiled(f)(tensor([1.0, 2.0], requires_grad=True))


def test_a_write_to_what_the_program_makes_a_subclass_of_is_refused() -> None:
    def to_whole(x: Any) -> Any:
        y = TwoTensor(x, x * 2)
        y.mul_(2)
        return y + x

    def to_part(x: Any) -> Any:
        y = TwoTensor(x, x * 2)
        z = y + 1
        x.mul_(2)
        return z + y

    for f in (to_whole, to_part):
        with pytest.raises(
            RuntimeError, match="makes a TwoTensor of tensors, and then writes to it or to them"
        ):
            compiled(f)(torch.ones(2))


def test_a_subclass_written_to_a_plain_tensor_is_refused() -> None:
    def f(w: Any, x: Any) -> Any:
        w.copy_(x.sin())
        return w

    with pytest.raises(
        RuntimeError, match=r"the program writes a TwoTensor.* to a tensor that is a plain tensor"
    ):
        compiled(f)(torch.ones(2, 3), two())


def test_a_second_derivative_is_refused() -> None:
    x = runtime.wrap(two(), requires_grad=True)
    with pytest.raises(
        RuntimeError,
        match="no second derivative here: a tensor subclass is among its arguments or results",
    ):
        runtime.autograd.grad(compiled(torch.sin)(x), x, two(), create_graph=True)


def test_an_element_of_a_subclass_is_not_read() -> None:
    with pytest.raises(
        RuntimeError, match="asks for the elements of a tensor while the program is being traced"
    ):
        compiled(lambda x: x * x.sum().item())(two())


def test_an_explanation_names_the_parts() -> None:
    report = explain(compiled(torch.sin), runtime.wrap(nested(), requires_grad=True))
    assert [v.source for v in report.saved] == [
        "args[0].a.a",
        "args[0].a.b",
        "args[0].b.a",
        "args[0].b.b",
    ]
