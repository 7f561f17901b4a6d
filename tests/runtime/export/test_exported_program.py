"""What an exported program is made of: its inputs, outputs and constants, and what it checks
of its arguments."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)

from runtime import aot, dropin
from runtime.aot import export

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
aten: Any = torch.ops.aten


def loaded(program: Any) -> Any:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


def called(program: Any) -> list[Any]:
    return [n.target for n in program.graph.nodes if n.op == "call_function"]


class Shared(nn.Module):
    """Each of its tensors has two names, and it takes no arguments."""

    a: Tensor
    b: Tensor
    x: Tensor
    y: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = self.v = nn.Parameter(torch.full((2,), 2.0))
        self.register_buffer("a", torch.full((2,), 3.0))
        self.register_buffer("b", self.a)
        self.register_buffer("x", torch.full((2,), 5.0), persistent=False)
        self.register_buffer("y", self.x, persistent=False)

    def forward(self) -> Tensor:
        return self.v * self.b + self.y


def test_a_shared_tensor_is_an_input_under_each_name() -> None:
    program = export(Shared(), ())
    assert [
        (i.kind, i.arg.name, i.target, i.persistent) for i in program.graph_signature.input_specs
    ] == [
        (InputKind.PARAMETER, "p_w", "w", None),
        (InputKind.BUFFER, "b_a", "a", True),
        (InputKind.BUFFER, "b_x", "x", False),
        (InputKind.PARAMETER, "p_v", "v", None),
        (InputKind.BUFFER, "b_b", "b", True),
        (InputKind.BUFFER, "b_y", "y", False),
    ]
    assert set(program.state_dict) == {"w", "v", "a", "b"} and set(program.constants) == {"x", "y"}
    assert program.constants["x"] is program.constants["y"] and all(
        type(t) is Tensor for t in program.constants.values()
    )
    for run in (program.module(), loaded(program)):
        assert run().tolist() == [11.0, 11.0]


def test_a_program_without_arguments_may_have_several_constants() -> None:
    two, three = torch.full((2,), 2.0), torch.full((2,), 3.0, requires_grad=True)
    program = export(lambda: two * three.detach() + two, ())
    assert [i.kind for i in program.graph_signature.input_specs] == [InputKind.CONSTANT_TENSOR] * 2
    for run in (program.module(), loaded(program)):
        assert run().tolist() == [8.0, 8.0]


def test_a_closed_over_tensor_that_requires_grad_is_a_constant_without() -> None:
    w = torch.full((2,), 2.0, requires_grad=True)
    program = export(lambda x: x * w, (torch.ones(2),))
    (constant,) = program.constants.values()
    assert not constant.requires_grad and program.module()(torch.ones(2)).tolist() == [2.0, 2.0]


class Writes(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            self.last.add_(1)
            self.count.add_(1)
            x.mul_(2)
        return x * self.first * self.last + y


def test_new_values_of_parameters_buffers_and_arguments_are_outputs_of_their_kinds() -> None:
    program = export(Writes(), (torch.ones(2), torch.ones(2)))
    assert [(o.kind, o.target) for o in program.graph_signature.output_specs] == [
        (OutputKind.PARAMETER_MUTATION, "last"),
        (OutputKind.BUFFER_MUTATION, "count"),
        (OutputKind.USER_INPUT_MUTATION, "x"),
        (OutputKind.USER_OUTPUT, None),
    ]
    assert all(type(o.arg) is TensorArgument for o in program.graph_signature.output_specs)


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor, n: int, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * n).detach(), (self.w * x * y).sum()


def test_a_program_of_training_names_its_loss_and_the_owner_of_each_gradient() -> None:
    x, y = torch.tensor([3.0], requires_grad=True), torch.tensor([5.0], requires_grad=True)
    for index in (1, -1):
        program = export(Trained(), (x, 4, y), output_loss_index=index)
        assert [(o.kind, o.target) for o in program.graph_signature.output_specs] == [
            (OutputKind.USER_OUTPUT, None),
            (OutputKind.LOSS_OUTPUT, None),
            (OutputKind.GRADIENT_TO_PARAMETER, "w"),
            (OutputKind.GRADIENT_TO_USER_INPUT, "x"),
            (OutputKind.GRADIENT_TO_USER_INPUT, "y"),
        ]
        (first, loss), gradients = program.module()(x, 4, y)
        assert (first.item(), loss.item()) == (12.0, 30.0) and {
            k: g.item() for k, g in gradients.items()
        } == {
            "w": 15.0,
            "x": 10.0,
            "y": 6.0,
        }


def test_results_are_tensors_sizes_and_constants() -> None:
    program = export(
        lambda x: (x * 2, x.shape[0], x.shape[0] * 2, 3, None), (torch.ones(4),), dynamic=True
    )
    assert [type(o.arg) for o in program.graph_signature.output_specs] == [
        TensorArgument,
        SymIntArgument,
        SymIntArgument,
        ConstantArgument,
        ConstantArgument,
    ]
    for run in (program.module(), loaded(program)):
        tensor, n, twice, three, none = run(torch.ones(6))
        assert (tensor.tolist(), n, twice, three, none) == ([2.0] * 6, 6, 12, 3, None)


def test_all_dimensions_of_all_arguments_may_be_any() -> None:
    def f(d: Any, pair: Any, n: int, *, last: Any) -> Any:
        return d["a"][0] * n + pair[0].sum() + pair[1].sum() + last["b"]

    def given(n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ({"a": [torch.ones(n, 2)]}, (torch.ones(n + 1), torch.ones(n, n + 2)), 3), {
            "last": {"b": torch.ones(n, 2)}
        }

    program = export(f, *given(4), dynamic=True).module()
    args, kwargs = given(6)
    torch.testing.assert_close(program(*args, **kwargs), f(*args, **kwargs))


@pytest.mark.parametrize(
    ("f", "args", "names"),
    [
        (lambda x, y: x * y, (torch.ones(1), torch.ones(1)), ["x", "y"]),
        (lambda x, *rest: x * rest[1], (torch.ones(1),) * 3, ["x", "args_1", "args_2"]),
        (lambda x, y: x[0] * y["k"], ([torch.ones(1)], {"k": torch.ones(1)}), ["x_0", "y_k"]),
        (torch.add, (torch.ones(1), torch.ones(1)), ["args_0", "args_1"]),
    ],
)
def test_inputs_are_named_after_parameters(f: Any, args: Any, names: list[str]) -> None:
    assert [i.arg.name for i in export(f, args).graph_signature.input_specs] == names


def test_a_keyword_names_its_input() -> None:
    program = export(
        lambda x, *, k, **more: x * k * more["m"],
        (torch.ones(1),),
        {"m": torch.ones(1), "k": torch.full((1,), 3.0)},
    )
    assert [i.arg.name for i in program.graph_signature.input_specs] == ["x", "m", "k"]
    assert program.module()(torch.ones(1), k=torch.full((1,), 3.0), m=torch.ones(1)).item() == 3.0


def test_ops_are_decomposed_as_asked() -> None:
    assert called(export(torch.tanh, (torch.ones(2),))).count(aten.tanh.default) == 1
    program = export(
        torch.tanh,
        (torch.ones(2),),
        decompositions={aten.tanh.default: lambda x: 2 * (2 * x).sigmoid() - 1},
    )
    assert aten.tanh.default not in called(program) and aten.sigmoid.default in called(program)
    torch.testing.assert_close(program.module()(torch.ones(2)), torch.ones(2).tanh())


AS_IT_LIES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "read": (lambda x: x.as_strided((2,), (3,)) * 1, True),
    "read after a view": (lambda x: x.view(6).unsqueeze(0).as_strided((2,), (3,)) * 1, True),
    "read after a copy": (lambda x: (x * 1).as_strided((2,), (3,)) * 1, False),
    "only viewed": (lambda x: x.t() * 1, False),
    "written": (lambda x: x.as_strided((2,), (3,)).mul_(2), True),
}


@pytest.mark.parametrize("name", AS_IT_LIES)
def test_strides_are_checked_of_what_is_taken_as_it_lies_in_memory(name: str) -> None:
    f, checked = AS_IT_LIES[name]
    program = export(f, (torch.arange(6.0).view(2, 3),))
    (check,) = (n for n in program.graph.nodes if n.target is aten._assert_tensor_metadata.default)
    assert list(check.args[1:]) == [None, [3, 1] if checked else None, torch.float32]
    assert (
        check.kwargs == {"device": torch.device("cpu"), "layout": torch.strided}
        and check is program.graph.find_nodes(op="call_function", target=check.target)[0]
    )
    assert called(program)[0] is check.target, "it is checked first"


def test_nothing_is_checked_of_how_a_sparse_argument_lies_in_memory() -> None:
    program = export(lambda x: x.to_dense() * 2, (torch.eye(2).to_sparse(),))
    assert aten._assert_tensor_metadata.default not in called(program)


def test_a_branch_is_a_part_of_the_program() -> None:
    program = export(
        lambda x: aot.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        (torch.ones(2),),
    )
    for x in (torch.ones(2), -torch.ones(2)):
        torch.testing.assert_close(program.module()(x), x.sin() if x.sum() > 0 else x.cos())


def test_a_constant_that_no_file_holds_is_refused_with_the_line() -> None:
    generator = torch.Generator()
    with pytest.raises(
        RuntimeError,
        match=r"a constant of type Generator, .* It happened at .*test_exported_program",
    ):
        export(lambda x: x * torch.rand(2, generator=generator), (torch.ones(2),))


def test_a_write_to_rows_that_overlap_is_refused_with_the_line() -> None:
    def program(x: Tensor) -> Tensor:
        y = torch.cat([x, x.sin()])
        with torch.no_grad():
            y[:3].unfold(0, 2, 1).add_(x.sum())
        return y

    with pytest.raises(
        RuntimeError,
        match=r"aten\.add_\.Tensor writes to its argument, and an exported graph cannot.*"
        r"It happened at .*test_exported_program\.py:\d+: y\[:3\]\.unfold",
    ):
        export(program, (torch.ones(3, 3),))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_parameter_of_the_session_stays_frozen_or_not(requires_grad: bool) -> None:
    with dropin.installed():
        module = nn.Linear(2, 2)
        module.weight.requires_grad_(requires_grad)
        program = export(module, (torch.ones(1, 2),))
    weight = program.state_dict["weight"]
    assert type(weight) is nn.Parameter and weight.requires_grad is requires_grad


def test_the_guards_of_torch_are_in_the_module_unless_its_caller_leaves_them_out() -> None:
    program = export(lambda x, k: x * k, (torch.ones(2), 1))
    with pytest.raises(AssertionError, match="size"):
        program.module()(torch.ones(3), 1)
    # the check of torch's that stands for them
    with pytest.raises(RuntimeError, match="to be equal to 2, but got 3"):
        program.module(check_guards=False)(torch.ones(3), 1)


class Counts(torch.nn.Module):
    """Changes its own attributes, and computes with them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.found = 0, [0.5]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.found.append(1.0)
        return x * self.calls + len(self.found)


def test_what_a_program_finds_in_pythons_state_is_kept_and_what_it_changes_is_put_back() -> None:
    module = Counts()
    with pytest.warns(UserWarning, match="changes 'calls' of Counts, Counts.found. The exported"):
        program = export(module, (torch.ones(2),))
    assert (module.calls, module.found) == (0, [0.5])
    module.calls = 7
    assert program.module()(torch.ones(2)).tolist() == [3.0, 3.0]


def test_an_export_that_fails_leaves_the_module_as_it_was() -> None:
    class Fails(Counts):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            super().forward(x)
            raise ValueError("mine")

    module = Fails()
    with pytest.raises(ValueError, match="mine"):
        export(module, (torch.ones(2),))
    assert (module.calls, module.found) == (0, [0.5])
