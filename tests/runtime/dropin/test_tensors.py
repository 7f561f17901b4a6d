"""Making, printing and placing tensors under the drop-in. The same program on plain torch is the
oracle, its random state included."""

from __future__ import annotations

import copy
import inspect
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import runtime
from runtime import dropin

from .compare import Program, both

CASES: dict[str, Program] = {}


def case(program: Program) -> Program:
    CASES[program.__name__] = program
    return program


@case
def modules_on_the_meta_device() -> Any:
    with torch.device("meta"):
        layer = nn.Linear(2, 3)
        x = torch.ones(4, 2)
    out = layer(x)
    out.sum().backward()
    filled = layer.to_empty(device="cpu")
    other = nn.Linear(2, 3, device="meta")
    other.load_state_dict({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, assign=True)
    w: Any = layer.weight
    return (
        out.shape,
        str(out.device),
        w.grad.shape,
        str(filled.weight.device),
        other(torch.ones(1, 2)),
        str(x.device),
        w.grad.device.type,
    )


@case
def the_default_device() -> Any:
    torch.set_default_device("meta")
    try:
        made = [
            torch.empty(2),
            torch.tensor([1.0]),
            torch.arange(3),
            torch.rand(2),
            torch.as_tensor([1]),
            nn.Linear(1, 1).weight,
        ]
        made.append(torch.zeros(1, device="cpu"))
        return [str(t.device) for t in made]
    finally:
        torch.set_default_device(None)


@case
def a_module_without_its_initialization() -> Any:
    layer = nn.utils.skip_init(nn.Linear, 2, 2)
    return layer.weight.shape, isinstance(layer.weight, nn.Parameter), layer.weight.requires_grad


@case
def printing() -> Any:
    p = nn.Parameter(torch.ones(2))
    shown = [
        p,
        nn.Parameter(torch.ones(1), requires_grad=False),
        p * 2,
        torch.rand(2, requires_grad=True),
        torch.ones(2).to_sparse(),
    ]
    shown += [
        torch.ones(2).to_sparse().requires_grad_(),
        torch.tensor([1 + 2j]),
        torch.rand(20, 20).requires_grad_(),
    ]
    shown += [
        torch.empty(2, device="meta", requires_grad=True),
        torch.eye(2).to_sparse_csr(),
        torch.tensor([]),
        torch.tensor(2),
    ]
    modules: list[nn.Module] = [
        nn.ParameterList([p]),
        nn.ParameterDict({"a": p}),
        nn.Sequential(nn.Linear(1, 2), nn.ReLU()),
    ]
    return [repr(x) for x in shown], [str(m) for m in modules], f"{torch.tensor(1.5):.3f}"


@case
def the_forms_of_tensor() -> Any:
    x = torch.ones(2)
    made = [
        torch.tensor([]),
        torch.tensor([[]]),
        torch.tensor(()),
        torch.tensor(1),
        torch.tensor(1.5),
        torch.tensor(1j),
        torch.tensor(2),
    ]
    made += [
        torch.tensor([x.sum(), x[0]]),
        torch.tensor([[1, 2.5], [x[0], 3]]),
        torch.tensor(x),
        torch.tensor([x[0].item(), 2]),
    ]
    made += [
        torch.tensor(np.float64(1)),
        torch.tensor(np.arange(3)),
        torch.tensor([np.float32(1)]),
        torch.tensor([1, 2], dtype=torch.half),
    ]
    made += [
        torch.as_tensor([]),
        torch.as_tensor(x),
        torch.as_tensor(np.ones(2)),
        torch.asarray([1, 2]),
        torch.asarray(x, copy=True),
    ]
    made += [
        torch.scalar_tensor(2),
        torch.tensor(range(3)),
        torch.tensor([[True], [False]]),
        torch.as_tensor(x, dtype=torch.double),
    ]
    return made, torch.as_tensor(x) is x


@case
def a_tensor_of_tensors_has_the_device_and_dtype_and_flag_that_it_is_given() -> Any:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    made = [
        torch.tensor(x.detach(), dtype=torch.double),
        torch.tensor(x, device="meta"),
        torch.tensor(x, requires_grad=True),
    ]
    made += [
        torch.tensor([x[0].item(), 2.0], dtype=torch.int32),
        torch.tensor([x.detach()[0], 2.0], dtype=torch.double),
    ]
    made += [
        torch.tensor([x.detach()[1], 2.0], requires_grad=True),
        torch.tensor(x, dtype=torch.half, device="meta"),
    ]
    made += [
        torch.tensor(((x.detach()[0], 1), [2, x.detach()[1]])),
        torch.as_tensor(x, dtype=torch.half),
        torch.asarray(x),
    ]
    copied = torch.tensor(x.detach())
    copied.add_(1)
    return made, x, copied, [t.requires_grad for t in made]


@case
def nested_tensors() -> Any:
    parts = [torch.ones(2, 3), torch.zeros(1, 3)]
    made = [
        torch.nested.nested_tensor(parts),
        torch.nested.nested_tensor(parts, dtype=torch.double, requires_grad=True),
    ]
    made.append(torch.nested.as_nested_tensor(parts))
    parts[0].add_(1)
    return [[(t.shape, t.dtype, t.tolist()) for t in nested.unbind()] for nested in made], [
        nested.requires_grad for nested in made
    ]


@case
def factories_take_requires_grad_by_keyword() -> Any:
    x = torch.ones(2)
    made = [
        torch.ones(2, requires_grad=True),
        torch.zeros(2, requires_grad=False),
        torch.ones_like(x, requires_grad=True),
    ]
    made += [
        torch.linspace(0, 1, 3, requires_grad=True),
        torch.randn(2, requires_grad=True),
        torch.eye(2, dtype=torch.cfloat),
    ]
    return made, [t.requires_grad for t in made]


@case
def tensor_refuses_ragged_lists() -> Any:
    return torch.tensor([[1, 2], [3]])


@case
def the_legacy_constructors() -> Any:
    x: Any = torch.ones(2)
    made = [
        torch.FloatTensor([1, 2]),
        torch.LongTensor([1]),
        torch.Tensor([1, 2]),
        torch.Tensor(),
        torch.Tensor(x),
        x.new([1, 2]),
    ]
    return (
        made,
        isinstance(x, torch.FloatTensor),
        x.type(),
        x.type(torch.DoubleTensor),
        x.type("torch.LongTensor"),
        torch.is_tensor(x),
    )


@case
def numpy_both_ways() -> Any:
    x = torch.ones(3)
    a = x.numpy()
    a[0] = 5
    y = torch.from_numpy(np.arange(3.0))
    total = np.add(x, 1)
    return (
        x,
        y,
        np.asarray(x).tolist(),
        type(total).__name__,
        np.array(x, dtype=np.int64).tolist(),
        np.sum(x.detach().numpy()).item(),
    )


@case
def numpy_of_one_that_requires_grad() -> Any:
    return np.asarray(torch.ones(2, requires_grad=True))


@case
def the_protocols_of_python() -> Any:
    x, n = torch.tensor([3.0, 1.0]), torch.tensor(2)
    numbers = [
        bool(n),
        int(n),
        float(n),
        complex(n),
        [10, 20, 30][n],
        len(x),
        3.0 in x,
        7 in x,
        hash(x) == hash(x),
        list(range(5))[n:],
    ]
    return (
        numbers,
        [float(v) for v in x],
        sorted(x.tolist()),
        x == x,
        copy.copy(x),
        copy.deepcopy(nn.Parameter(x)),
        reversed(x),
    )


@case
def one_memory() -> Any:
    x: Any = torch.zeros(3)
    p = nn.Parameter(x)
    d, s = torch.utils.dlpack.from_dlpack(x), x.new_empty(0).set_(x.untyped_storage(), 1, (2,))
    with torch.no_grad():
        p.add_(1)
    pointers = [t.data_ptr() == x.data_ptr() for t in (p, d, x.detach(), x.data)]
    return (
        x,
        d,
        s,
        pointers,
        x.untyped_storage().nbytes(),
        torch.ones(2).share_memory_().is_shared(),
    )


@case
def assigning_parameters() -> Any:
    module: Any = nn.Module()
    module.w = nn.Parameter(torch.ones(1))
    module.register_parameter("v", None)
    module.register_buffer("b", torch.zeros(1))
    module.w = nn.Parameter(torch.zeros(2))
    module.b = torch.ones(2)
    return list(module.state_dict().items()), [n for n, _ in module.named_parameters()]


@case
def assigning_a_tensor_as_a_parameter() -> Any:
    nn.Linear(1, 1).weight = torch.ones(1, 1)


INITIALIZERS = (
    "uniform_ normal_ trunc_normal_ ones_ eye_ xavier_uniform_ xavier_normal_ kaiming_uniform_ "
    "kaiming_normal_ orthogonal_"
)


@case
def initializers() -> Any:
    made = [getattr(nn.init, name)(torch.empty(3, 4)) for name in INITIALIZERS.split()]
    return (
        made,
        nn.init.sparse_(torch.empty(3, 4), 0.5),
        nn.init.dirac_(torch.empty(2, 2, 3)),
        nn.init.constant_(torch.empty(1), 2),
    )


@case
def modules_draw_what_torch_draws() -> Any:
    layers: list[nn.Module] = [
        nn.Linear(2, 3),
        nn.Conv2d(1, 2, 3),
        nn.ConvTranspose1d(2, 2, 2),
        nn.LSTM(2, 3, 2),
        nn.GRUCell(2, 2),
    ]
    layers += [
        nn.Embedding(4, 2),
        nn.EmbeddingBag(4, 2),
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2, 8),
    ]
    layers += [nn.Bilinear(2, 2, 2), nn.BatchNorm2d(2, affine=True), nn.PReLU()]
    layers += [nn.LayerNorm(3), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))]
    layers += [
        nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)),
    ]
    return [p for layer in layers for p in layer.parameters()]


@case
def factories_draw_what_torch_draws() -> Any:
    x = torch.empty(5)
    made = [
        torch.rand(2),
        torch.randn(2),
        torch.randint(5, (3,)),
        torch.randperm(4),
        torch.normal(0.0, 1.0, (2,)),
        torch.rand_like(x),
    ]
    made += [
        torch.randn_like(x),
        torch.bernoulli(torch.rand(3)),
        torch.multinomial(torch.rand(4), 2),
        x.normal_().clone(),
        x.uniform_(),
    ]
    made += [
        x.exponential_().clone(),
        x.cauchy_().clone(),
        torch.poisson(torch.rand(2) * 5),
        nn.functional.dropout(torch.ones(5)),
    ]
    return (
        made,
        nn.functional.gumbel_softmax(torch.zeros(3)),
        torch.rand(2, generator=torch.Generator().manual_seed(3)),
    )


def sparse_gradient(layout: str, loss: Any) -> Program:
    def program() -> Any:
        x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
        s = (x.to_sparse() if layout == "coo" else x.to_sparse_csr()).requires_grad_()
        loss(s).backward()
        (again,) = torch.autograd.grad(loss(s), s)
        g: Any = s.grad
        return [(str(t.layout), t._nnz(), t.to_dense() + 0) for t in (g, again)]

    return program


LOSSES: dict[str, Any] = {
    "to_dense": lambda s: (s.to_dense() * torch.arange(6.0).reshape(2, 3)).sum(),
    "to_dense everywhere": lambda s: s.to_dense(masked_grad=False).sum(),
    "sparse.mm": lambda s: torch.sparse.mm(s, torch.ones(3, 2)).sum(),
    "sparse.addmm": lambda s: torch.sparse.addmm(torch.ones(2, 2), s, torch.ones(3, 2)).sum(),
    "product": lambda s: (s * 2).to_dense().sum(),
    "negation": lambda s: (-s).to_dense().sum(),
    "transposition": lambda s: s.t().to_dense().sum(),
    "values": lambda s: (s.coalesce() if s.layout is torch.sparse_coo else s).values().sum(),
}


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_sparse_leaf_has_a_gradient_of_its_layout(name: str, layout: str) -> None:
    found, expected = both(sparse_gradient(layout, LOSSES[name]))
    assert found == expected


@pytest.mark.parametrize("name", CASES)
def test_a_program_does_as_on_torch(name: str) -> None:
    found, expected = both(CASES[name])
    assert found == expected


def test_in_a_transformed_function_a_list_of_values_becomes_one_constant() -> None:
    def program() -> Any:
        def f(x: Any) -> Any:
            made = [
                torch.tensor([x.detach()[0], 2.0]),
                torch.tensor(x.detach()),
                torch.tensor([[x.detach()[1]], [3.0]]).sum(),
            ]
            return sum((x * t).sum() for t in made) + (torch.ones(2) * x).sum()

        return torch.func.grad(f)(torch.tensor([3.0, 5.0]))

    found, expected = both(program)
    assert found == expected


def test_a_parameter_from_before_stays_one_and_requires_grad_as_it_did() -> None:
    trained, frozen, plain = (
        nn.Parameter(torch.ones(2)),
        nn.Parameter(torch.ones(2), requires_grad=False),
        torch.ones(2),
    )
    with dropin.installed():
        for p in (trained, frozen):
            made = torch.as_tensor(p)
            assert (
                isinstance(made, runtime.Tensor)
                and isinstance(made, nn.Parameter)
                and made.data_ptr() == p.data_ptr()
            )
            assert made.requires_grad is p.requires_grad
        made = torch.as_tensor(plain)
        assert (
            isinstance(made, runtime.Tensor)
            and not made.requires_grad
            and made.data_ptr() == plain.data_ptr()
        )


def test_a_device_as_a_context_works_whichever_of_torch_and_the_drop_in_asked_first() -> None:
    torch.utils._device._device_constructors.cache_clear()
    with dropin.installed(), torch.device("meta"):
        assert torch.ones(2).device.type == nn.Linear(1, 1).weight.device.type == "meta"
    with torch.device("meta"):
        assert torch.ones(2).device.type == "meta"


def test_a_factory_has_source_for_whoever_looks_for_it() -> None:
    with dropin.installed():
        assert (
            inspect.getsource(inspect.unwrap(torch.ones))
            and inspect.signature(torch.ones)
            and torch.ones.__name__ == "ones"
        )


def test_files_are_read_as_plain_tensors_once_the_drop_in_is_gone() -> None:
    file = io.BytesIO()
    torch.save({"w": nn.Parameter(torch.ones(2)), "x": torch.zeros(2)}, file)
    for _ in range(2):
        with dropin.installed():
            file.seek(0)
            assert all(isinstance(t, runtime.Tensor) for t in torch.load(file).values())
        file.seek(0)
        loaded = torch.load(file)
        assert [type(t) for t in loaded.values()] == [nn.Parameter, torch.Tensor]


@pytest.mark.parametrize(
    "factory", ["ones_like", "zeros_like", "empty_like", "rand_like", "randn_like"]
)
@pytest.mark.parametrize("transformed", [False, True])
def test_a_write_to_what_a_factory_made_alike_is_counted(factory: str, transformed: bool) -> None:
    """The recorded write and the view's come after the product has saved the tensor."""

    def f(x: Any, write: Any) -> Any:
        made = getattr(torch, factory)(x)
        product = (x * made).sum()
        write(made, x)
        assert made._version == 1
        return product

    with dropin.installed():
        for write in (lambda t, x: t.mul_(x), lambda t, x: t[0].mul_(x[0]), lambda t, x: t.zero_()):
            x = torch.ones(2, requires_grad=True)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                if transformed:
                    torch.func.grad(lambda y, write=write: f(y, write))(x)
                else:
                    f(x, write).backward()
