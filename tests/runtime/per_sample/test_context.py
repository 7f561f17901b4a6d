"""The context: what it takes as parameters and as the batch, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import runtime
from runtime.func import grad
from runtime.per_sample import per_sample

B, N = 4, 3


def samples(rows: int = B, seed: int = 0) -> Tensor:
    return torch.randn(rows, N, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def parameter() -> Tensor:
    return torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)


class Scale(nn.Module):
    """``of``: the scaled tensor, from the arguments."""

    def __init__(self, of: Callable[..., Tensor] = lambda x: x) -> None:
        super().__init__()
        self.w, self.of = nn.Parameter(parameter().detach()), of

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = self.of(*args, **kwargs) * self.w
        return out


@pytest.mark.parametrize(
    "params", [lambda w: w, lambda w: [w], lambda w: {"w": w}, lambda w: iter((w,))]
)
def test_results_have_the_structure_of_the_parameters(params: Callable[[Tensor], Any]) -> None:
    w, x = parameter(), samples()
    with per_sample(params(w)) as grads:
        (grads.batch(x) * w).sum().backward()
    expected = params(x.sum(0))
    expected = expected if isinstance(expected, (Tensor, list, dict)) else list(expected)
    torch.testing.assert_close(grads.weighted_sum(torch.ones(B, dtype=x.dtype)), expected)
    assert len(grads) == B


def test_a_frozen_parameter_has_no_gradients_and_norms_of_zero() -> None:
    w, frozen, x = parameter(), torch.ones(N, 2, dtype=torch.float64), samples()
    with per_sample([w, frozen]) as grads:
        (grads.batch(x) * w @ frozen).sum().backward()
    assert "unused" in grads.explain()
    found = grads.materialize()[1]
    assert found.shape == (B, N, 2) and found.count_nonzero() == 0
    assert grads.norms("parameter")[1].equal(torch.zeros(B, dtype=torch.float64))


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "another reduction": (
        lambda: per_sample([parameter()], reduction="max"),
        ValueError,
        "reduction must be 'sum', 'mean' or None, got 'max'",
    ),
    "a number for a parameter": (
        lambda: per_sample({"w": 3}),  # type: ignore[arg-type]
        TypeError,
        r"\['w'\] must be a tensor, got int",
    ),
    "a value of a transform": (
        lambda: grad(lambda w: per_sample([w]) and w.sum())(parameter().detach()),
        RuntimeError,
        r"used inside .* with \[0\] a value of it. Use per_sample_grads there",
    ),
    "a shared tensor that requires grad": (
        lambda: per_sample([parameter()]).shared(parameter()),
        RuntimeError,
        "shared.. is for constants",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    run, error, says = REFUSED[name]
    with pytest.raises(error, match=f"per_sample: .*{says}"):
        run()


def test_data_of_a_plain_tensor_is_not_set_to_samples() -> None:
    kept = torch.zeros(B, N, dtype=torch.float64)
    with per_sample([parameter()]) as grads:
        x = grads.batch(samples())
        with pytest.raises(
            RuntimeError,
            match=(
                r"\.data of a plain tensor is set to what follows from samples "
                r"or parameters. Use copy_"
            ),
        ):
            kept.data = x * 2
        assert kept.count_nonzero() == 0
        kept.data = torch.ones(2)
    assert kept.equal(torch.ones(2))


@dataclass
class Inputs:
    rows: Tensor
    more: list[Tensor]
    name: str = "inputs"
    made: int = field(init=False, default=0)


ARGUMENTS: dict[
    str, tuple[Callable[..., Tensor], Callable[[Tensor], tuple[Any, dict[str, Any]]]]
] = {
    "a tensor": (lambda x: x, lambda x: ((x,), {})),
    "by keyword": (lambda *, x: x, lambda x: ((), {"x": x})),
    "in a list and a dictionary": (lambda a, b: a[0] * b["x"], lambda x: (([x], {"x": 2 * x}), {})),
    "in a data class": (lambda d: d.rows * d.more[0], lambda x: ((Inputs(x, [2 * x]),), {})),
    "of another size beside": (
        lambda x, c: x * c.sum(),
        lambda x: ((x, torch.ones(B + 1, dtype=x.dtype)), {}),
    ),
    "a number beside": (lambda x, c: x * c, lambda x: ((x, torch.tensor(2.0, dtype=x.dtype)), {})),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_the_outermost_module_are_the_batch(name: str) -> None:
    of, given = ARGUMENTS[name]
    x, module = samples(), Scale(of)
    rows = []
    for one in x:
        args, kwargs = given(one[None])
        rows.append(torch.autograd.grad(module(*args, **kwargs).pow(2).sum(), module.w)[0])
    args, kwargs = given(x)
    with per_sample(module.w) as grads:
        module(*args, **kwargs).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize(), torch.stack(rows))


def test_the_fields_of_a_data_class_of_the_caller_stay() -> None:
    given, module = Inputs(samples(), [samples(seed=1)]), Scale(lambda d: d.rows * d.more[0])
    rows, more = given.rows, given.more[0]
    with per_sample(module.w):
        module(given).sum().backward()
    assert given.rows is rows and given.more[0] is more


def test_a_tensor_that_is_shared_is_no_batch_though_it_has_as_many_rows() -> None:
    x, mask, module = samples(), samples(seed=1), Scale(lambda x, mask: x @ mask[:N].mT)
    with per_sample(module.w) as grads:
        module(x, grads.shared(mask)).sum().backward()
    torch.testing.assert_close(grads.materialize(), x @ mask[:N].mT)
    with (
        per_sample(module.w),
        pytest.raises(
            RuntimeError, match="mixes samples in a Scale: it picks samples by their position"
        ),
    ):
        module(x, mask).sum().backward()


def test_what_is_made_inside_of_nothing_from_outside_is_no_batch() -> None:
    x, module = samples(), Scale(lambda x, c: x * c[0])
    with per_sample(module.w) as grads:
        module(
            x, torch.arange(B, dtype=x.dtype)[:, None] + torch.ones(N, dtype=x.dtype)
        ).sum().backward()
    torch.testing.assert_close(grads.materialize(), x)


def test_the_batch_lies_in_the_dimension_that_is_said() -> None:
    x, module = samples(), Scale(lambda x, c: x.mT * c)
    with per_sample(module.w, batch_dim=1) as grads:
        module(x.mT, torch.tensor(2.0, dtype=x.dtype)).sum().backward()
    torch.testing.assert_close(grads.materialize(), 2 * x)
    with per_sample(module.w, batch_dim=1) as grads:
        (grads.batch(x, 0) * module.w).sum().backward()
    torch.testing.assert_close(grads.materialize(), x)


@pytest.mark.parametrize("order", [[3, 2, 1], [1, 3, 2]])
def test_the_rows_of_a_packed_sequence_belong_to_its_samples(order: list[int]) -> None:
    rows = [samples(n, seed=n) for n in order]
    module = Scale(lambda packed: packed.data)
    with per_sample(module.w) as grads:
        module(pack_sequence(rows, enforce_sorted=False)).sum().backward()
    torch.testing.assert_close(grads.materialize(), torch.stack([each.sum(0) for each in rows]))


@pytest.mark.parametrize("packed", [2, 3, 4])
def test_a_packed_sequence_may_have_as_many_samples_as_the_batch_or_fewer(packed: int) -> None:
    rows = [samples(packed - i, seed=i) for i in range(packed)]
    module, x = Scale(lambda x, sequence: torch.cat([x, sequence.data])), samples()
    with per_sample(module.w) as grads:
        module(x, pack_sequence(rows)).sum().backward()
    expected = x.clone()
    expected[:packed] += torch.stack([each.sum(0) for each in rows])
    torch.testing.assert_close(grads.materialize(), expected)


def test_the_later_steps_of_a_packed_sequence_are_a_part_of_each_sample() -> None:
    rows = [samples(3 - i, seed=i) for i in range(3)]
    module = Scale(lambda sequence: sequence.data[3:])
    with per_sample(module.w) as grads:
        module(pack_sequence(rows)).sum().backward()
    torch.testing.assert_close(grads.materialize(), torch.stack([each[1:].sum(0) for each in rows]))


@pytest.mark.parametrize("size", [1, 2])
def test_a_packed_sequence_of_few_samples(size: int) -> None:
    rows = [samples(3, seed=i) for i in range(size)]
    module = Scale(lambda sequence: sequence.data.exp())
    with per_sample(module.w) as grads:
        module(pack_sequence(rows)).sum().backward()
    torch.testing.assert_close(
        grads.materialize(), torch.stack([each.exp().sum(0) for each in rows])
    )


def test_a_batch_that_was_marked_in_another_dimension_stays_so_in_a_module() -> None:
    x, module = samples(N), Scale(lambda x: x.mT)
    with per_sample(module.w) as grads:
        module(grads.batch(x.mT, 1)).sum().backward()
    torch.testing.assert_close(grads.materialize(), x)


def test_a_tensor_of_the_runtime_is_a_batch_as_a_plain_one_is() -> None:
    x, module = samples(), Scale()
    with per_sample(module.w) as grads:
        module(runtime.wrap(x)).sum().backward()
    torch.testing.assert_close(grads.materialize(), x)


NO_MORE: Any = None


def test_a_data_class_without_a_batch_reaches_the_module_itself() -> None:
    given, x, seen = Inputs(torch.tensor(2.0), NO_MORE), samples(), list[Any]()
    module = Scale(lambda x, *rest: [x, seen.extend(rest)][0])  # type: ignore[func-returns-value]
    with per_sample(module.w) as grads:
        module(x, given, Inputs).sum().backward()
    assert seen[0] is given and seen[1] is Inputs
    torch.testing.assert_close(grads.materialize(), x)


def test_an_empty_batch_of_a_product_has_gradients_of_no_rows() -> None:
    w = parameter()
    with per_sample(w) as grads:
        assert len(grads) == 0 and grads.losses.shape == (0,)
        (grads.batch(samples(0)) * w).sum().backward()
    assert grads.materialize().shape == (0, N) and grads.weighted_sum(torch.zeros(0)).equal(
        torch.zeros(N).double()
    )


@pytest.mark.parametrize("k", [7, (2, 3)])
def test_projections_are_on_the_device_of_the_gradients(k: Any) -> None:
    layer, unused = nn.Linear(N, 2, device="meta"), torch.ones(2, device="meta", requires_grad=True)
    with per_sample([*layer.parameters(), unused]) as grads:
        layer(grads.batch(torch.ones(B, N, device="meta"))).sum().backward()
    assert grads.project(k).device.type == "meta" and grads.project(k).shape == (
        B,
        7 if k == 7 else 6,
    )


def test_a_packed_sequence_of_more_samples_than_the_batch_is_refused() -> None:
    module, x, packed = (
        Scale(lambda x, packed: x.sum() * packed.data),
        samples(),
        pack_sequence([samples(1)] * 5),
    )
    with (
        per_sample(module.w),
        pytest.raises(
            RuntimeError, match="a packed sequence has 5 samples, and another batch has 4"
        ),
    ):
        module(x, packed)


def test_an_error_names_the_path_of_the_module() -> None:
    class Mixer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    model, x = nn.Sequential(Scale(), nn.Sequential(nn.Tanh(), Mixer())), samples()
    with (
        per_sample(model.parameters()),
        pytest.raises(RuntimeError, match=r"mixes samples in 1\.1 \(Mixer\)"),
    ):
        model(x).pow(2).sum().backward()
    with (
        per_sample(model.parameters()) as grads,
        pytest.raises(RuntimeError, match="mixes samples in a Mixer"),
    ):
        Mixer()(grads.batch(x) * model[0].w).pow(2).sum().backward()
    with (
        per_sample(model.parameters()),
        pytest.raises(RuntimeError, match="mixes samples in the program"),
    ):
        y = model[0](x)
        (y - y.mean(0)).pow(2).sum().backward()


def test_two_passes_are_seen_by_what_is_asked_between_them() -> None:
    w, x = parameter(), samples()
    with per_sample([w]) as grads:
        (grads.batch(x) * w).sum().backward()
        torch.testing.assert_close(grads.norms(), x.norm(dim=1))
        (grads.batch(x) * w).sum().backward()
        torch.testing.assert_close(grads.norms(), 2 * x.norm(dim=1))


@pytest.mark.parametrize("how", ["under no_grad", "through detach"])
def test_a_parameter_that_takes_no_part_in_a_gradient_is_a_constant(how: str) -> None:
    w, v, x = parameter(), parameter(), samples()
    with per_sample([w, v]) as grads:
        y = grads.batch(x) * w
        with torch.set_grad_enabled(how != "under no_grad"):
            z = y * v
        (y * z.detach()).sum().backward()
    of_w, of_v = grads.materialize()
    torch.testing.assert_close(of_w, x * (x * w * v).detach())
    assert of_v.count_nonzero() == 0


def test_a_tensor_made_inside_is_a_constant_unless_it_is_marked() -> None:
    module = Scale()
    with per_sample(module.w):
        loss = module(samples()).sum()
        with pytest.raises(RuntimeError, match=r"by a term without samples.* mark the batch"):
            loss.backward()
    with per_sample(module.w) as grads:
        module(grads.batch(samples())).sum().backward()
    torch.testing.assert_close(grads.materialize(), samples())
