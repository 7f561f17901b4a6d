"""An exported program is torch's own container: torch saves it, loads it and runs it, and it means
what the program means."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from runtime import dropin, unwrap
from runtime.aot import export

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)


class Model(nn.Module):
    """Tied weights, buffers of both kinds, a constant, a literal, a batch norm, an argument
    that is written to."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 3), nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(3), persistent=False)
        self.constant = torch.full((3,), 2.0)

    def forward(
        self, x: torch.Tensor, k: int, *, counts: dict[str, torch.Tensor]
    ) -> dict[str, Any]:
        y = (
            self.norm(self.first(x) + self.second(x)) * self.constant * k
            + self.shift
            + torch.tensor([1.0, 2.0, 3.0])
        )
        counts["calls"].add_(1)
        return {"y": y, "k": k, "none": None, "calls": counts["calls"] * 2}


def exported(**options: Any) -> tuple[Model, ExportedProgram]:
    torch.manual_seed(0)
    model = Model()
    return model, export(
        model, (torch.randn(5, 4), 2), {"counts": {"calls": torch.zeros(())}}, **options
    )


def loaded(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@pytest.mark.parametrize("again", [False, True], ids=["made", "loaded"])
def test_a_program_computes_and_writes_what_the_module_does(again: bool) -> None:
    model, program = exported()
    # the program runs on the buffers of the module
    state, model = model.state_dict(), copy.deepcopy(model)
    run = (loaded(program) if again else program).module()
    x, a, b = torch.randn(5, 4), torch.zeros(()), torch.zeros(())
    for _ in range(2):
        torch.testing.assert_close(run(x, 2, counts={"calls": a}), model(x, 2, counts={"calls": b}))
    assert a == b == 2
    buffers = dict(run.named_buffers())
    torch.testing.assert_close(buffers["norm.running_mean"], model.norm.running_mean)
    assert buffers["norm.num_batches_tracked"] == 2
    assert state.keys() == program.state_dict.keys()


def test_export_changes_neither_the_module_nor_its_arguments() -> None:
    torch.manual_seed(0)
    model, calls = Model(), torch.zeros(())
    before = {name: t.clone() for name, t in model.state_dict().items()}
    random = torch.get_rng_state()
    program = export(model, (torch.ones(5, 4), 2), {"counts": {"calls": calls}})
    assert calls == 0 and torch.equal(torch.get_rng_state(), random) and model.training
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert set(program.graph_signature.buffers_to_mutate.values()) == {
        f"norm.{n}" for n, _ in model.norm.named_buffers()
    }


def test_the_signature_lists_parameters_and_buffers_by_their_names() -> None:
    model, program = exported()
    signature = program.graph_signature
    names = [name for name, _ in model.named_parameters()]
    # A tied weight has another name as well.
    assert list(signature.parameters) == [*names, "second.weight"]
    assert list(signature.buffers) == [name for name, _ in model.named_buffers()]
    assert list(signature.non_persistent_buffers) == ["shift"]


def test_the_signature_lists_constants_arguments_and_those_that_are_written_to() -> None:
    signature = exported()[1].graph_signature
    assert len(signature.lifted_tensor_constants) == 2
    assert list(signature.user_inputs) == ["x", 2, "counts_calls"]
    assert list(signature.user_inputs_to_mutate.values()) == ["counts_calls"]


def test_tied_weights_are_one_tensor_that_the_graph_uses_by_its_first_name() -> None:
    model, program = exported()
    state = program.state_dict
    assert state["first.weight"] is state["second.weight"] is model.first.weight
    assert not next(n for n in program.graph.nodes if n.name == "p_second_weight").users


def test_no_op_of_an_exported_graph_writes_to_an_argument() -> None:
    targets = [node.target for node in exported()[1].graph.nodes]
    ops = [target for target in targets if isinstance(target, torch._ops.OpOverload)]
    assert ops and not any(op._schema.is_mutable for op in ops)


def test_a_saved_program_takes_a_batch_of_any_size() -> None:
    """`test_models.py` runs saved programs in a process without this package."""
    model, program = exported(dynamic_shapes={"x": {0: Dim("batch")}, "k": None, "counts": None})
    # the program runs on the buffers of the module
    model, x = copy.deepcopy(model), torch.randn(7, 4)
    found = loaded(program).module()(x, 2, counts={"calls": torch.zeros(())})["y"]
    torch.testing.assert_close(found, model(x, 2, counts={"calls": torch.zeros(())})["y"])


def test_a_saved_program_may_have_sizes_that_depend_on_values() -> None:
    program = loaded(export(torch.nonzero, (torch.eye(3),), dynamic=True))
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    assert program.module()(x).equal(torch.nonzero(x))


def test_a_function_is_exported_with_what_it_closes_over_as_constants() -> None:
    scale = torch.full((3,), 2.0)

    def f(x: torch.Tensor, *, k: int) -> Any:
        y = x.clone()
        y[0].zero_()
        return [y * scale * k, (y, x)]

    program = export(f, (torch.ones(2, 3),), {"k": 4})
    x = torch.randn(2, 3)
    torch.testing.assert_close(program.module()(x, k=4), f(x, k=4))
    torch.testing.assert_close(loaded(program).module()(x, k=4), f(x, k=4))


class TestWhatIsNotAsAtExport:
    def test_shapes_dtypes_and_constants_are_refused(self) -> None:
        run = export(lambda x, k: x.reshape(-1) * k, (torch.ones(3, 4), 1)).module()
        with pytest.raises(AssertionError, match=r"size\(\)\[0\] == 3"):
            run(torch.ones(2, 4), 1)
        with pytest.raises(RuntimeError, match="dtype mismatch"):
            run(torch.ones(3, 4, dtype=torch.double), 1)
        with pytest.raises(AssertionError, match="== 1"):
            run(torch.ones(3, 4), 3)

    @pytest.mark.parametrize("other", [1.0, True])
    def test_a_constant_of_another_type_is_refused(self, other: object) -> None:
        run = export(lambda x, k: x * k, (torch.ones(2, dtype=torch.int64), 1)).module()
        assert run(torch.ones(2, dtype=torch.int64), 1).dtype is torch.int64
        with pytest.raises(RuntimeError, match="was 1 at export and is a constant of the program"):
            run(torch.ones(2, dtype=torch.int64), other)

    def test_strides_are_checked_where_the_program_takes_memory_as_it_lies(self) -> None:
        program = export(lambda x: x.as_strided((2,), (3,)) * 1, (torch.arange(6.0).reshape(2, 3),))
        assert program.module()(torch.arange(6.0).reshape(2, 3)).tolist() == [0.0, 3.0]
        with pytest.raises(RuntimeError, match="stride"):
            program.module()(torch.arange(6.0).reshape(3, 2).t())

    def test_other_strides_are_right_elsewhere(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return (x.permute(1, 0) * torch.arange(6.0).view(3, 2)).sum() + x.t()[0, 0]

        x = torch.randn(3, 2).t()
        torch.testing.assert_close(export(f, (torch.ones(2, 3),)).module()(x), f(x))
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            export(lambda x: x.reshape(-1) * 1, (torch.ones(2, 3),)).module()(x)


class TestSizes:
    def test_a_named_dim_is_one_size_wherever_it_stands(self) -> None:
        n = Dim("n", min=2, max=20)
        program = export(
            lambda x, y: x * y[0],
            (torch.ones(3, 4), [torch.ones(3, 4)]),
            dynamic_shapes=({0: n}, [{0: n, 1: Dim.STATIC}]),
        )
        assert program.module()(torch.ones(6, 4), [torch.ones(6, 4)]).shape == (6, 4)
        ((_, values),) = program.range_constraints.items()
        assert (values.lower, values.upper) == (2, 20)
        for sizes in ((6, 5), (30, 30)):
            with pytest.raises(AssertionError):
                program.module()(torch.ones(sizes[0], 4), [torch.ones(sizes[1], 4)])
        with pytest.raises(RuntimeError, match=r"is right for s.* >= 2 alone"):
            program.module()(torch.ones(1, 4), [torch.ones(1, 4)])

    def test_shapes_are_given_by_the_name_of_the_argument(self) -> None:
        def f(x: torch.Tensor, *rest: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return x * scale + sum(r.sum() for r in rest)

        shapes = {"x": {0: Dim.AUTO}, "rest": [{0: Dim.DYNAMIC}, None], "scale": [Dim.AUTO]}
        program = export(
            f,
            (torch.ones(3), torch.ones(4), torch.ones(2)),
            {"scale": torch.ones(3)},
            dynamic_shapes=shapes,
        )
        args = torch.randn(5), torch.randn(7), torch.randn(2)
        torch.testing.assert_close(
            program.module()(*args, scale=torch.ones(5)), f(*args, scale=torch.ones(5))
        )

    def test_automatic_sizes_take_what_the_program_needs(self) -> None:
        def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return (x @ w).reshape(-1).sum() / x.shape[0] + torch.zeros(x.shape[0])

        run = export(f, (torch.ones(3, 4), torch.ones(4, 5)), dynamic=True).module()
        x, w = torch.randn(6, 2), torch.randn(2, 7)
        torch.testing.assert_close(run(x, w), f(x, w))
        with pytest.raises(AssertionError, match="size"):
            run(torch.ones(3, 4), torch.ones(5, 5))

    def test_a_condition_on_sizes_is_checked_by_the_graph(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sin() if x.shape[0] + y.shape[0] > 6 else x.cos()

        program = export(f, (torch.ones(5), torch.ones(4)), dynamic=True)
        for run in (program.module(), loaded(program).module()):
            assert run(torch.ones(3), torch.ones(4)).allclose(torch.ones(3).sin())
            with pytest.raises(RuntimeError, match="the exported program is right for"):
                run(torch.ones(2), torch.ones(3))

    @pytest.mark.parametrize(
        ("f", "shapes", "says"),
        [
            (
                lambda x, y: x.view(3, 4) * 2,
                ({0: Dim("n")}, None),
                r"Dim 'n', dimension 0 of argument \[0\]: .* right for size 3 alone",
            ),
            (lambda x, y: x.view(3, 4) * 2, ({0: Dim.DYNAMIC}, None), "right for size 3 alone"),
            (
                lambda x, y: x.sin() if x.shape[0] > 2 else x,
                ({0: Dim("n")}, None),
                r"needs 3 <= size .* Say Dim\('n', min=3\)",
            ),
            (
                lambda x, y: x + y,
                ({0: Dim("n")}, {0: Dim("m")}),
                "needs them to be equal. Use one Dim for both",
            ),
            (
                lambda x, y: x,
                ({0: Dim("n", min=4)}, None),
                "has size 3 in the example, which is not between 4",
            ),
            (
                lambda x, y: x,
                ({0: Dim("n")}, {1: Dim("n")}),
                "Dim 'n', dimension 1 of argument .1.* elsewhere another one",
            ),
            (
                lambda x, y: x,
                ({0: 2 * Dim("n")}, None),
                r"has size 3 in the example, which is not 2\*n for any n",
            ),
            (
                lambda x, y: x,
                ({0: 5}, None),
                "says 5 for dimension 0 of argument .0., whose size is 3",
            ),
            (
                lambda x, y: x,
                ({2: Dim("n")}, None),
                "has dimension 2 of argument .0., which has 2 dimensions",
            ),
            (lambda x, y: x, ({0: Dim("n")},), "has 1 items for 2 arguments"),
            (
                lambda x, y: x,
                ({0: Dim("n")}, 3),
                "says 3 of an argument of type Tensor, which does not have that structure",
            ),
            (lambda x, y: x, {"z": {0: Dim("n")}}, r"has \['z'\], which are no parameters"),
        ],
    )
    def test_a_program_that_needs_more_of_a_size_than_its_dim_says_is_refused(
        self, f: Any, shapes: Any, says: str
    ) -> None:
        with pytest.raises(ValueError, match=says):
            export(f, (torch.ones(3, 4), torch.ones(3, 4)), dynamic_shapes=shapes)


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor] | Any:
        y = self.norm(x * self.a) * self.b * self.frozen
        return y.detach(), (y * y * y).sum()


@pytest.mark.parametrize("again", [False, True], ids=["made", "loaded"])
def test_a_program_of_training_gives_the_gradients_of_the_loss(again: bool) -> None:
    model, x = Training(), torch.randn(5, 2)
    program = export(
        model, (x.clone().requires_grad_(),), dynamic_shapes=({0: Dim("n")},), output_loss_index=1
    )
    model = copy.deepcopy(model)
    backward = program.graph_signature.backward_signature
    assert backward is not None and set(backward.gradients_to_parameters.values()) == {
        "a",
        "norm.weight",
        "norm.bias",
    }
    run = (loaded(program) if again else program).module()
    x = torch.randn(6, 2, requires_grad=True)
    (y, loss), gradients = run(x)
    expected, eager = model(x)
    eager.backward()
    torch.testing.assert_close((y, loss), (expected, eager))
    named = {**dict(model.named_parameters()), "x": x}
    # one for both names of a shared parameter
    assert gradients.keys() == {"a", "norm.weight", "norm.bias", "x"}
    for name, g in gradients.items():
        torch.testing.assert_close(g, named[name].grad)
    torch.testing.assert_close(
        dict(run.named_buffers())["norm.running_mean"], model.norm.running_mean
    )


def test_a_program_of_training_is_made_of_a_module_whose_loss_uses_all_parameters() -> None:
    with pytest.raises(TypeError, match="exported from a module"):
        export(lambda x: x.sum(), (torch.ones(2, requires_grad=True),), output_loss_index=0)
    with pytest.raises(
        RuntimeError, match=r"does not depend on parameter or buffer .first\.weight."
    ):
        export(Unused(), (torch.ones(2),), output_loss_index=0)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.second).sum()


def test_a_change_of_sizes_in_place_is_refused() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"argument \[0\] has other sizes or strides after the call \(aten::unsqueeze_\)",
    ):
        export(lambda x: x.unsqueeze_(0) * 1, (torch.ones(2),))


def test_parameters_of_the_session_are_plain_in_the_program() -> None:
    with dropin.installed():
        model = nn.Linear(2, 1)
        program = export(model, (torch.ones(3, 2),))
        expected = unwrap(model(torch.ones(3, 2)).detach())
    assert (
        all(type(p) is nn.Parameter for p in program.parameters())
        and len(list(program.parameters())) == 2
    )
    torch.testing.assert_close(loaded(program).module()(torch.ones(3, 2)).detach(), expected)


def test_a_default_dtype_that_the_program_sets_is_refused_with_its_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.ones(2) / 3
        finally:
            torch.set_default_dtype(torch.float32)

    with pytest.raises(RuntimeError, match=r"default dtype that it has set.*test_export.py"):
        export(program, (torch.ones(2),))
