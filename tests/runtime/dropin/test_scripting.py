"""TorchScript under the drop-in: programs that are scripted compute and train as on torch."""

from __future__ import annotations

import copy
import importlib.util
import io
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.jit._builtins
from torch import nn

from runtime import dropin
from tests.runtime.dropin.compare import both, outcome

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

# An expression of `x: Tensor` and `n: int` for each factory that TorchScript knows.
FACTORIES = {
    "arange": "torch.arange(n)",
    "as_tensor": "torch.as_tensor([1.0, 2.0])",
    "bartlett_window": "torch.bartlett_window(n)",
    "blackman_window": "torch.blackman_window(n)",
    "empty": "torch.empty([n]).fill_(2.0)",
    "empty_like": "torch.empty_like(x).fill_(2.0)",
    "empty_permuted": "torch.empty_permuted([n, 2], [1, 0]).fill_(2.0)",
    "empty_strided": "torch.empty_strided([n, 2], [2, 1]).fill_(2.0)",
    "eye": "torch.eye(n)",
    "fft_fftfreq": "torch.fft.fftfreq(n)",
    "fft_rfftfreq": "torch.fft.rfftfreq(n)",
    "full": "torch.full([n], 2.5, dtype=torch.float64)",
    "full_like": "torch.full_like(x, 2.5)",
    "hamming_window": "torch.hamming_window(n)",
    "hann_window": "torch.hann_window(n)",
    "kaiser_window": "torch.kaiser_window(n)",
    "linspace": "torch.linspace(0, 1, n)",
    "logspace": "torch.logspace(0, 1, n)",
    "normal": "torch.normal(x, torch.ones_like(x)) + torch.normal(0.0, 1.0, [2])",
    "ones": "torch.ones(n, 2)",
    "ones_like": "torch.ones_like(x)",
    "rand": "torch.rand([n])",
    "rand_like": "torch.rand_like(x)",
    "randint": "torch.randint(2, 9, [n])",
    "randint_like": "torch.randint_like(x.detach(), 9)",
    "randn": "torch.randn(n, 2)",
    "randn_like": "torch.randn_like(x)",
    "randperm": "torch.randperm(n)",
    "range": "torch.range(0, n)",
    "scalar_tensor": "torch.scalar_tensor(n)",
    "sparse_coo_tensor": (
        "torch.sparse_coo_tensor(torch.zeros([1, 2], dtype=torch.long), x, [n]).to_dense()"
    ),
    "sparse_csr_tensor": (
        "torch.sparse_csr_tensor(torch.arange(3), torch.arange(2), x.detach(), [2, 2]).to_dense()"
    ),
    "tensor": "torch.tensor([[1.0, 2.0], [3.0, float(n)]])",
    "tril_indices": "torch.tril_indices(n, n)",
    "triu_indices": "torch.triu_indices(n, n)",
    "zeros": "torch.zeros([n], dtype=torch.long, device=x.device)",
    "zeros_like": "torch.zeros_like(x)",
}
# the operators of these names take something that TorchScript has no type for, or are not there
NOT_IN_SCRIPTS = {
    "asarray",
    "from_file",
    "from_numpy",
    "frombuffer",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_csc_tensor",
}
_modules = itertools.count()


def scripts(expression: str, folder: Path) -> list[Any]:
    """A function and a module that return ``expression``, and a class whose instances hold it,
    each scripted. A script is compiled from the text of a file."""
    name = f"scripted_{next(_modules)}"
    file = folder / f"{name}.py"
    file.write_text(
        f"""
import torch

def f(x: torch.Tensor, n: int):
    return {expression}

class M(torch.nn.Module):
    def forward(self, x, n: int):
        return {expression}

class Holder:
    def __init__(self, x: torch.Tensor, n: int):
        self.made = {expression}

Holder = torch.jit.script(Holder)

def held(x: torch.Tensor, n: int):
    return Holder(x, n).made
"""
    )
    spec = importlib.util.spec_from_file_location(name, file)
    module: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        return [torch.jit.script(f) for f in (module.f, module.M(), module.held)]
    finally:
        del sys.modules[name]


NAMESPACES = (torch, torch.fft, torch.special, torch.linalg, torch.sparse, torch.signal.windows)


def test_every_factory_of_torchscript_is_tried() -> None:
    operators = torch.jit._builtins._get_builtin_table()
    before = {(of, name): f for of in NAMESPACES for name, f in vars(of).items()}
    with dropin.installed():
        replaced = [f for (of, name), f in before.items() if vars(of).get(name) is not f]
    names = {operators[id(f)].partition("::")[2] for f in replaced if id(f) in operators}
    names = {name for name in names if "anomaly" not in name}  # which make no tensors
    assert names == FACTORIES.keys() | NOT_IN_SCRIPTS


@pytest.mark.parametrize("name", FACTORIES)
def test_a_scripted_program_calls_factories(name: str, tmp_path: Path) -> None:
    def program() -> list[Any]:
        out = []
        for script in scripts(FACTORIES[name], tmp_path):
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            made = script(x, 3)
            y = (x.sum() * made).sum()
            y.backward()
            out.append((made.tolist(), str(made.dtype), y.detach(), x.grad))
        return out

    found, expected = both(program)
    assert isinstance(expected[0], list)
    assert str(found).replace("'runtime.session.tensor.", "'") == str(expected)


def test_the_table_of_torchscript_is_restored() -> None:
    before = dict(torch.jit._builtins._get_builtin_table())
    with dropin.installed():
        assert torch.jit._builtins._find_builtin(torch.zeros) == "aten::zeros"
        assert torch.jit._builtins._find_builtin(torch.autograd.grad) is None
    assert torch.jit._builtins._get_builtin_table() == before


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("b", torch.ones(2))
        self.shift = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x * self.w + self.b + torch.arange(2) + self.shift  # type: ignore[operator]
        return y

    @torch.jit.export
    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.w


class Nest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Scaled(), Scaled()])
        self.last = nn.Linear(2, 2, bias=False)
        nn.init.constant_(self.last.weight, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        y: torch.Tensor = self.last(x) + torch.zeros_like(x)
        return y


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scripted = torch.jit.script(Nest())
        self.shift = torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.scripted(x) + self.shift
        return y


def loaded(module: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def loaded_by_torch_load(module: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def frozen(module: Any) -> Any:
    return torch.jit.freeze(module.eval())


def frozen_but_for(module: Any) -> Any:
    return torch.jit.freeze(module.eval(), preserved_attrs=["w", "other"])


def partly_frozen_weights(module: Any) -> Any:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name == "parts.0.w")
    return module


CAPTURED = {
    "scripted": lambda: torch.jit.script(Nest()),
    "traced": lambda: torch.jit.trace(Nest(), torch.ones(2)),
    "traced, of a scripted one": lambda: torch.jit.trace(torch.jit.script(Nest()), torch.ones(2)),
    "traced, with a scripted part": lambda: torch.jit.trace(Holds(), torch.ones(2)),
    "scripted, of a traced one": lambda: torch.jit.script(torch.jit.trace(Nest(), torch.ones(2))),
    "scripted, with a traced part": lambda: torch.jit.script(
        nn.Sequential(torch.jit.trace(Nest(), torch.ones(2)), nn.ReLU())
    ),
    "a copy": lambda: copy.deepcopy(torch.jit.script(Nest())),
    "a copy of a traced one": lambda: copy.deepcopy(torch.jit.trace(Nest(), torch.ones(2))),
    "loaded": lambda: loaded(torch.jit.script(Nest())),
    "loaded, traced": lambda: loaded(torch.jit.trace(Nest(), torch.ones(2))),
    "loaded, a traced one with a scripted part": lambda: loaded(
        torch.jit.trace(Holds(), torch.ones(2))
    ),
    "loaded by torch.load": lambda: loaded_by_torch_load(torch.jit.script(Nest())),
    "frozen": lambda: frozen(torch.jit.script(Nest())),
    "frozen, of a traced one": lambda: torch.jit.freeze(
        torch.jit.trace(Nest().eval(), torch.ones(2))
    ),
    "frozen but for a method": lambda: frozen_but_for(torch.jit.script(Scaled())),
    "optimized": lambda: torch.jit.optimize_for_inference(torch.jit.script(Nest()).eval()),
    "with some weights frozen": lambda: partly_frozen_weights(torch.jit.script(Nest())),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_module_of_torchscript_trains(name: str) -> None:
    made: Any = CAPTURED[name]

    def program() -> Any:
        module: Any = made()
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = module(x) + (module.other(x) if hasattr(module, "other") else 0)
        without = module(torch.ones(2))
        y.pow(2).sum().backward()
        return (
            y.tolist(),
            without.requires_grad,
            without.tolist(),
            x.grad.tolist(),  # type: ignore[union-attr]
            [(p.requires_grad, p.tolist(), p.grad) for p in module.parameters()],
            [b.tolist() for b in module.buffers()],
        )

    found, expected = both(program)
    assert isinstance(expected[0], list)
    assert str(found) == str(expected)


def test_a_file_of_torchscript_says_which_tensors_require_grad() -> None:
    file = io.BytesIO()
    with dropin.installed():
        torch.jit.save(partly_frozen_weights(torch.jit.script(Nest())), file)
    file.seek(0)
    module = torch.jit.load(file)
    assert [p.requires_grad for p in module.parameters()] == [True, False, False]
    module(torch.ones(2)).sum().backward()
    assert dict(module.named_parameters())["parts.0.w"].grad is not None


@pytest.mark.parametrize(
    "program",
    [
        lambda: __import__("torch.distributed.optim") and None,
        lambda: torch.jit.script(nn.MultiheadAttention(4, 2)).eval()(*[torch.ones(3, 1, 4)] * 3)[0],
        lambda: torch.jit.script(nn.TransformerEncoderLayer(4, 2, 8)).eval()(torch.ones(3, 1, 4)),
        lambda: torch.jit.script(nn.BatchNorm1d(2))(torch.arange(4.0).view(2, 2)),
    ],
    ids=["torch.distributed.optim", "attention", "encoder", "batch_norm"],
)
def test_torchs_own_programs_can_be_scripted(program: Any) -> None:
    with dropin.installed():
        found = outcome(program)
    expected = outcome(program)
    assert "Error" not in str(expected)
    assert str(found) == str(expected)
