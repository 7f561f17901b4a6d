"""An exported program says what it takes and gives, checks it, and means what the program means."""

import pytest
import torch

from runtime.aot import export


def test_the_signature_names_arguments_constants_mutations_and_results() -> None:
    scale = torch.full((3,), 2.0)

    def f(x: torch.Tensor, count: torch.Tensor, *, k: int) -> dict[str, torch.Tensor]:
        count.add_(1)
        return {"scaled": x * scale * k}

    program = export(f, (torch.ones(3), torch.zeros(())), {"k": 4})
    s = program.signature
    assert [a.path for a in s.inputs] == ["[0]", "[1]", "['k']"] or [a.constant for a in s.inputs][-1] == 4
    assert s.mutated == (s.inputs[1].name,)
    assert len(s.outputs) == 1
    assert len(s.constants) == 1
    count = torch.zeros(())
    torch.testing.assert_close(program(torch.ones(3), count, k=4), {"scaled": torch.full((3,), 8.0)})
    assert count == 1


def test_its_graph_is_functional() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[0].zero_()
        return y

    program = export(f, (torch.ones(3, 2),))
    assert not any(n.target._schema.is_mutable for n in program.graph.nodes if n.op == "call_function")
    x = torch.randn(3, 2)
    torch.testing.assert_close(program(x), f(x))


def test_a_static_program_refuses_other_shapes_dtypes_and_constants() -> None:
    program = export(lambda x, k: x.reshape(-1) * k, (torch.ones(3, 4), 2))
    with pytest.raises(RuntimeError, match=r"must have shape \[3, 4\], as exported; got \[2, 4\]; export with dynamic=True"):
        program(torch.ones(2, 4), 2)
    with pytest.raises(RuntimeError, match=r"must be a tensor of torch\.float32"):
        program(torch.ones(3, 4, dtype=torch.double), 2)
    with pytest.raises(RuntimeError, match="was 2 at export"):
        program(torch.ones(3, 4), 3)
    with pytest.raises(RuntimeError, match="takes arguments of the structure"):
        program(torch.ones(3, 4))


def test_a_dynamic_program_runs_at_other_sizes() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).reshape(-1).sum() / x.shape[0] + torch.zeros(x.shape[0])

    program = export(f, (torch.ones(3, 4), torch.ones(4, 5)), dynamic=True)
    x, w = torch.randn(6, 2), torch.randn(2, 7)
    torch.testing.assert_close(program(x, w), f(x, w))


def test_a_dynamic_program_refuses_sizes_that_break_its_conditions() -> None:
    program = export(lambda x, w: x @ w, (torch.ones(3, 4), torch.ones(4, 5)), dynamic=True)
    assert "size()" in program.signature.guards
    with pytest.raises(RuntimeError, match="break a condition"):
        program(torch.ones(3, 4), torch.ones(5, 5))


def test_a_size_that_the_program_decides_on_becomes_a_condition() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] > 3 else x.cos()

    program = export(f, (torch.ones(5),), dynamic=True)
    torch.testing.assert_close(program(torch.ones(8)), torch.ones(8).sin())
    with pytest.raises(RuntimeError, match="break a condition"):
        program(torch.ones(2))
