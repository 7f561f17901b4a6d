"""Modules as functions of their state. torch.func is the oracle."""

import warnings
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

import runtime.func

from ..errors import told


class Net(nn.Module):
    """A tied weight, a buffer that each call counts up, and a submodule."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.tied = self.weight
        self.register_buffer("count", torch.zeros(1))
        self.head = nn.Linear(2, 2)

    def forward(self, x: Any, fail: bool = False) -> Any:
        self.count = self.count + 1
        if fail:
            raise ValueError("in forward")
        return self.head(x * self.weight + self.tied) + self.count


X = torch.tensor([2.0, 3.0])
NEW = {"weight": torch.tensor([5.0, 7.0]), "count": torch.tensor([10.0])}


def both(program: Callable[[Any, Any], Any]) -> Any:
    """``program(torch.func or runtime.func, a module)`` gives the same on both sides,
    or the same error."""
    found = []
    for lib in (torch.func, runtime.func):
        torch.manual_seed(0)
        try:
            found.append(program(lib, Net()))
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as e:
            found.append(told(e))
    theirs, ours = found
    if isinstance(theirs, tuple) and isinstance(theirs[0], str):
        assert ours == theirs
    else:
        torch.testing.assert_close(ours, theirs)
    return ours


@pytest.mark.parametrize("args", [X, (X,), (X, False)])
def test_the_given_tensors_stand_in_for_the_modules_own(args: Any) -> None:
    both(lambda lib, net: lib.functional_call(net, dict(NEW), args))
    both(
        lambda lib, net: lib.functional_call(
            net, ({"weight": NEW["weight"]}, {"head.bias": X}), X, {"fail": False}
        )
    )


@pytest.mark.parametrize("fail", [False, True])
def test_the_module_has_its_own_state_back_also_after_an_exception(fail: bool) -> None:
    net = Net()
    before = {k: (id(v), v._version) for k, v in net.state_dict(keep_vars=True).items()}
    attributes = set(net.__dict__)
    try:
        runtime.func.functional_call(
            net, {**NEW, "head.weight": torch.zeros(2, 2), "extra": X}, X, {"fail": fail}
        )
    except ValueError:
        assert fail
    assert {k: (id(v), v._version) for k, v in net.state_dict(keep_vars=True).items()} == before
    assert (
        set(net.__dict__) == attributes
        and net.tied is net.weight
        and isinstance(net.weight, nn.Parameter)
    )


def test_a_buffer_that_forward_replaces_is_replaced_in_the_dict() -> None:
    for given in ({"count": torch.zeros(1)}, ({"weight": X}, {"count": torch.zeros(1)})):
        runtime.func.functional_call(Net(), given, X)
        assert (given if isinstance(given, dict) else given[1])["count"].item() == 1


def test_what_forward_deletes_stays_in_the_dict() -> None:
    class Forgetful(nn.Module):
        def forward(self, x: Any) -> Any:
            del self.extra
            return x

    given = {"extra": X}
    module = Forgetful()
    runtime.func.functional_call(module, given, X)
    assert given == {"extra": X} and not hasattr(module, "extra")


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"q": X}, {}),
        ({"q": X}, {"strict": True}),
        ({"weight": X}, {"strict": True}),
        ({"weight": X, "tied": X + 1}, {}),
        ({"weight": X, "tied": X + 1}, {"tie_weights": False}),
        ({"weight": X}, {"tie_weights": False}),
        ({"tied": X}, {}),
        (({"weight": X}, {"weight": X}), {}),
        (({"weight": X, "count": X}, {"weight": X}), {}),
        (3, {}),
        ([3], {}),
        ({"body.weight": X}, {}),
        ({"weight.x": X}, {}),
        ({"weight.x.y": X}, {}),
        ({"training.x": X}, {}),
        ({"head.weight.x": X}, {}),
        ({"head.body.x": X}, {}),
        ({"": X}, {}),
        ({"head": X}, {}),
    ],
)
def test_ties_strictness_and_mistakes(given: Any, options: Any) -> None:
    both(lambda lib, net: lib.functional_call(net, given, X, **options))


def test_what_is_given_must_be_tensors() -> None:
    with pytest.raises(TypeError, match=r"weight: 3 is not an instance of torch.Tensor"):
        runtime.func.functional_call(Net(), {"weight": 3}, X)  # type: ignore[dict-item]


def test_a_name_given_for_a_parametrized_weight_switches_the_parametrization_off() -> None:
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2, bias=False))
    cls, before = type(linear), linear.weight.detach().clone()
    out = runtime.func.functional_call(linear, {"weight": torch.eye(2) * 4}, X)
    torch.testing.assert_close(out, 4 * X)
    assert type(linear) is cls
    torch.testing.assert_close(linear.weight, before, check_layout=True)
    out = runtime.func.functional_call(
        linear, {"parametrizations.weight.original0": torch.full((2, 1), 2.0)}, X
    )
    expected = torch.func.functional_call(
        linear, {"parametrizations.weight.original0": torch.full((2, 1), 2.0)}, X
    )
    torch.testing.assert_close(out, expected)


def test_gradients_by_parameters_and_per_sample() -> None:
    batch, target = torch.randn(5, 2), torch.randn(5, 2)

    def program(lib: Any, net: Any) -> Any:
        params = {k: v.detach() for k, v in net.named_parameters()}

        def loss(params: Any, x: Any, y: Any) -> Any:
            return nn.functional.mse_loss(lib.functional_call(net, params, x), y)

        return lib.grad(loss)(params, batch, target), lib.vmap(lib.grad(loss), (None, 0, 0))(
            params, batch, target
        )

    class Plain(Net):
        def forward(self, x: Any, fail: bool = False) -> Any:
            return self.head(x * self.weight).tanh()

    for lib in (torch.func, runtime.func):
        torch.manual_seed(0)
        found = program(lib, Plain())
        if lib is torch.func:
            expected = found
    torch.testing.assert_close(found, expected)


def test_an_ensemble_is_a_vmap_over_stacked_state() -> None:
    def program(lib: Any, _: Any) -> Any:
        models = [
            nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU()).eval() for _ in range(4)
        ]
        params, buffers = lib.stack_module_state(models)
        assert all(p.is_leaf and p.requires_grad for p in params.values())
        detached = {k: p.detach() for k, p in params.items()}

        def call(params: Any, buffers: Any, x: Any) -> Any:
            return lib.functional_call(models[0], (params, buffers), x)

        return params, buffers, lib.vmap(call, (0, 0, None))(detached, buffers, X.expand(6, 2))

    both(program)


@pytest.mark.parametrize(
    "models",
    [
        list,
        lambda: [nn.Linear(1, 1), nn.ReLU()],
        lambda: [nn.Linear(1, 1), nn.Linear(1, 1).eval()],
        lambda: [nn.Linear(1, 1), nn.Linear(1, 2)],
        lambda: [nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False)],
    ],
)
def test_models_that_do_not_stack(models: Any) -> None:
    assert isinstance(both(lambda lib, _: lib.stack_module_state(models()))[0], str)


def test_batch_norms_that_track_nothing_can_be_mapped_over() -> None:
    def program(lib: Any, _: Any) -> Any:
        net = nn.Sequential(
            nn.BatchNorm1d(3),
            nn.Sequential(nn.BatchNorm1d(3)),
            nn.InstanceNorm1d(3, track_running_stats=True),
        )
        assert lib.replace_all_batch_norm_modules_(net) is net
        state = [
            (m.running_mean, m.running_var, m.num_batches_tracked, m.track_running_stats)
            for m in (net[0], net[1][0])
        ]
        assert state == [(None, None, None, False)] * 2
        assert net[2].running_mean is not None
        return lib.vmap(net[0])(torch.arange(24.0).reshape(2, 4, 3).sin())

    both(program)


def test_debug_unwrap_takes_the_transforms_off() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        seen.extend(runtime.func.debug_unwrap(x, recurse=recurse) for recurse in (True, False))
        return x.sum()

    x = torch.randn(3, 2)
    runtime.func.vmap(runtime.func.grad(f))(x)
    whole, one = seen
    assert type(whole) is torch.Tensor and whole.shape == (3, 2)
    assert type(one).__name__ == "BatchedValue"
    session = runtime.wrap(x)
    assert runtime.func.debug_unwrap(session) is session and runtime.func.debug_unwrap(x) is x


def test_torch_records_nothing_for_plain_parameters_that_a_transform_closes_over() -> None:
    """Its engine would see the backward pass alone, and give the parameters a part of the
    gradient of a gradient."""
    linear = nn.Linear(2, 1)

    def f(x: Any) -> Any:
        return linear(x).tanh().sum()

    found = {
        "grad": runtime.func.grad(f)(X),
        "vjp": runtime.func.vjp(f, X)[1](torch.ones(()))[0],
        "grad . grad": runtime.func.grad(lambda x: runtime.func.grad(f)(x).sum())(X),
        "hessian": runtime.func.hessian(f)(X),
        "vmap . grad": runtime.func.vmap(runtime.func.grad(f))(X[None])[0],
    }
    assert [name for name, t in found.items() if t.requires_grad] == []
    torch.testing.assert_close(found["hessian"], torch.func.hessian(f)(X).detach())


@pytest.mark.parametrize("given", [[{"weight": X}, {"count": X[:1]}], []])
def test_dicts_come_in_any_sequence_and_missing_arguments_are_none(given: Any) -> None:
    class Constant(Net):
        def forward(self, x: Any = X, fail: bool = False) -> Any:
            return super().forward(x, fail)

    for args in (None, ()):
        for kwargs in (None, {}, {"x": X + 1}):
            found = [
                lib.functional_call(_seeded(Constant), given, args, kwargs)
                for lib in (torch.func, runtime.func)
            ]
            torch.testing.assert_close(found[1], found[0])


def _seeded(module: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return module()


def test_a_dict_that_cannot_be_written_to_stays_as_it_is() -> None:
    given = MappingProxyType({"count": torch.zeros(1)})
    both(lambda lib, net: lib.functional_call(net, dict(given), X))
    runtime.func.functional_call(Net(), given, X)
    assert given["count"].item() == 0


def test_a_parameter_may_be_left_out_by_none() -> None:
    linear = nn.Linear(2, 2)
    given: Any = {"bias": None}
    torch.testing.assert_close(runtime.func.functional_call(linear, given, X), X @ linear.weight.T)
    assert isinstance(linear.bias, nn.Parameter)


def test_modules_that_hold_their_state_elsewhere_are_refused() -> None:
    parallel = nn.DataParallel(nn.Linear(2, 2))
    assert "nn.DataParallel module" in both(lambda lib, _: lib.functional_call(parallel, {}, X))[1]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        scripted = torch.jit.script(nn.Linear(2, 2))
    assert "Jitted modules" in both(lambda lib, _: lib.functional_call(scripted, {}, X))[1]


@pytest.mark.parametrize("tie_weights", [True, False])
def test_a_submodule_under_two_names_has_its_own_state_back(tie_weights: bool) -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net.append(net[0])
    before = dict(net[0].named_parameters())
    given = (
        {"0.weight": torch.eye(2), "1.weight": torch.eye(2) * 2}
        if not tie_weights
        else {"1.weight": torch.eye(2)}
    )
    runtime.func.functional_call(net, given, X, tie_weights=tie_weights)
    assert all(p is before[name] for name, p in net[0].named_parameters())


def test_a_mistake_in_a_name_leaves_the_module_alone() -> None:
    net = Net()
    before = {k: id(v) for k, v in net.state_dict(keep_vars=True).items()}
    for given in ({"weight": X, "q.q": X}, {"weight": X, "count": 3}):
        with pytest.raises((AttributeError, TypeError)):
            runtime.func.functional_call(net, given, X)  # type: ignore[arg-type]
        assert {k: id(v) for k, v in net.state_dict(keep_vars=True).items()} == before


def test_all_mistakes_of_strict_names_are_listed_in_order() -> None:
    with pytest.raises(RuntimeError) as error:
        runtime.func.functional_call(Net(), {"weight": X, "z": X, "a": X}, X, strict=True)
    unexpected, missing = str(error.value).splitlines()[1:]
    assert unexpected == "\tUnexpected key(s): 'a', 'z'."
    assert missing == "\tMissing key(s): 'count', 'head.bias', 'head.weight'."


def test_state_is_stacked_by_the_names_of_the_first_model() -> None:
    def stack(models: list[nn.Module]) -> Any:
        return both(lambda lib, _: lib.stack_module_state(models))

    one = nn.Linear(2, 1)
    params, buffers = stack([one])
    assert params["weight"].shape == (1, 1, 2) and not buffers
    assert "0.weight" in stack([nn.Sequential(one), nn.Sequential(one, nn.BatchNorm1d(1))])[0]
    assert stack([nn.Sequential(one, nn.BatchNorm1d(1)), nn.Sequential(one)])[0] == "KeyError"
    params, _ = stack([nn.Linear(2, 1).requires_grad_(False) for _ in range(2)])
    assert not any(p.requires_grad for p in params.values())
    assert isinstance(stack([nn.Linear(2, 1).eval() for _ in range(2)]), tuple)
    frozen = [nn.Linear(2, 1), nn.Linear(2, 1)]
    frozen[1].bias.requires_grad_(False)
    assert "Expected bias from each model to have the same .requires_grad" in stack([*frozen])[1]


def test_debug_unwrap_shows_what_functionalize_has_written() -> None:
    seen: list[torch.Tensor] = []

    def f(x: Any) -> Any:
        y = x.clone()
        row = y[0]
        y.zero_()
        seen.append(runtime.func.debug_unwrap(row))
        return y

    runtime.func.functionalize(f)(torch.ones(2, 2))
    assert type(seen[0]) is torch.Tensor and seen[0].tolist() == [0.0, 0.0]


def test_a_buffer_under_two_names_is_tied_as_a_parameter_is() -> None:
    class Tied(nn.Module):
        a: torch.Tensor
        b: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.ones(2))
            self.register_buffer("b", self.a)

        def forward(self, x: Any) -> Any:
            return self.a * x + 10 * self.b

    for given in ({"a": X}, {"b": X}, {"a": X, "b": X + 1}):
        for options in ({}, {"tie_weights": False}, {"strict": True}):
            both(lambda lib, _: lib.functional_call(Tied(), dict(given), X, **options))  # noqa: B023


def test_a_recurrent_layer_has_the_list_of_its_own_weights_back() -> None:
    layer, x = nn.LSTM(2, 3), torch.ones(4, 2)
    weights, own = layer._flat_weights, list(layer.parameters())
    given = {name: p.detach() + 1 for name, p in layer.named_parameters()}
    found = runtime.func.functional_call(layer, given, (x,))
    assert layer._flat_weights is weights
    assert all(a is b for a, b in zip(weights, own, strict=True))
    torch.testing.assert_close(found, torch.func.functional_call(layer, given, (x,)))
