"""Copies of tensors, modules and optimizers in every state, and the same of the originals.

    leaf(x, made="deep_copy")     # a leaf with a gradient: kind, values and gradient of the copy
    tied(x, made="pickled")       # a module with one weight under two names: results, gradients

``made`` is how the copy is made. A row is a state: what is copied. The copy must be what the
original is, and a write to it must show in the original only for a shallow copy. Another module or
optimizer that has loaded the state of the original is a copy, too.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from programs.families.tools import Results, Row

Copier = Callable[[Any], Any]


def _saved(value: Any, weights_only: bool = False, old_format: bool = False) -> Any:
    """Return what is loaded from a file of `value`."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=not old_format)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


WAYS: dict[str, Copier] = {
    "shallow_copy": copy.copy,
    "deep_copy": copy.deepcopy,
    "pickled": lambda value: pickle.loads(pickle.dumps(value)),
    "saved": _saved,
    "saved_as_weights": lambda value: _saved(value, weights_only=True),
    "saved_in_old_format": lambda value: _saved(value, old_format=True),
}
"""How a copy is made, by word of axis ``made``."""
LOADS = {"state_loaded": False, "state_assigned": True}
"""Whether `load_state_dict` assigns, by word: another object gets the state of the original."""


# --- tensors --------------------------------------------------------------------------------------


class Marked(Tensor):
    """A subclass without methods of its own."""


def _leaf(x: Tensor) -> Tensor:
    """Return a leaf with a gradient."""
    leaf = x.clone().requires_grad_()
    (leaf * leaf).sum().backward()
    return leaf


def _noted(x: Tensor) -> Any:
    """Return a tensor with an attribute of the user's."""
    x.note = 1.5  # type: ignore[attr-defined]
    return x


def _parameter(x: Tensor) -> nn.Parameter:
    """Return a parameter with a gradient."""
    parameter = nn.Parameter(x.clone())
    (parameter * parameter).sum().backward()
    return parameter


def _narrow(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.abs().mul(3).round().to(dtype)


TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x.clone(),
    "number": lambda x: x[0, 0].clone(),
    "empty": lambda x: x[:0].clone(),
    "leaf": _leaf,
    "part": lambda x: x.clone()[1:, ::2],
    "transposed": lambda x: x.clone().t(),
    "expanded": lambda x: x[:, :1].clone().expand(3, 4),
    "channels_last": lambda x: x.clone().reshape(1, 2, 2, 3).to(memory_format=torch.channels_last),
    "conjugated": lambda x: torch.complex(x, x + 1).conj(),
    "negated": lambda x: torch.complex(x, x + 1).conj().imag,
    "with_attribute": lambda x: _noted(x.clone()),
    "parameter": lambda x: nn.Parameter(x.clone()),
    "parameter_with_gradient": _parameter,
    "parameter_with_attribute": lambda x: _noted(nn.Parameter(x.clone())),
    "frozen_parameter": lambda x: nn.Parameter(x.clone(), requires_grad=False),
    "buffer": lambda x: nn.Buffer(x.clone()),
    "subclass": lambda x: x.clone().as_subclass(Marked),
    "coo": lambda x: x.to_sparse(),
    "coo_leaf": lambda x: x.to_sparse().requires_grad_(),
    "csr": lambda x: x.to_sparse_csr(),
    "csr_leaf": lambda x: x.to_sparse_csr().requires_grad_(),
    "bsr": lambda x: x.to_sparse_bsr((1, 2)),
    "half": _narrow(torch.float16),
    "brain_float": _narrow(torch.bfloat16),
    "truths": _narrow(torch.bool),
    "bytes": _narrow(torch.int8),
    "unsigned_16": _narrow(torch.uint16),
    "unsigned_32": _narrow(torch.uint32),
    "unsigned_64": _narrow(torch.uint64),
    "float_8": _narrow(torch.float8_e4m3fn),
    "half_complex": _narrow(torch.complex32),
}
"""What is copied, by the name of its row: a function of a matrix (3, 4)."""


def _described(x: Any, with_gradient: bool) -> list[Tensor]:
    """Return what a tensor is: its kind in numbers, its strides, values and gradient."""
    dense = x.detach() if x.layout is torch.strided else x.detach().to_dense()
    layouts = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_bsr)
    kinds = [
        x.dtype.itemsize,
        x.is_complex(),
        x.requires_grad,
        x.is_leaf,
        isinstance(x, nn.Parameter),
        isinstance(x, nn.Buffer),
        isinstance(x, Marked),
        layouts.index(x.layout),
        getattr(x, "note", 0),
    ]
    numbers = dense.as_subclass(Tensor).resolve_conj().resolve_neg()
    wide = torch.complex128 if numbers.is_complex() else torch.float64
    found = [torch.tensor(list(map(float, kinds))), numbers.to(wide)]
    if with_gradient and x.grad is not None:
        found.append(x.grad)
    return found


def _is_shared(mine: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have one memory."""
    if mine.layout is not torch.strided or not mine.numel():
        return False
    return mine.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _tensor_row(state: Callable[[Tensor], Tensor], may_refuse: bool = False) -> Row:
    # a gradient is no part of what is saved, and only a deep copy has one of its own
    def program(x: Tensor, *, made: str) -> Results:
        original = state(x)
        copied = WAYS[made](original)
        shared = torch.tensor(_is_shared(original, copied))
        return *_described(copied, made == "deep_copy"), shared

    def definition(x: Tensor, *, made: str) -> Results:
        original = state(x)
        is_shared = made == "shallow_copy" and _is_shared(original, original)
        return *_described(original, made == "deep_copy"), torch.tensor(is_shared)

    return Row(program, definition, may_refuse)


# --- modules --------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Any:
        return self.second(self.first(x).tanh())


class Listed(nn.Module):
    """Parameters in a list and in a dictionary, of which one is in both."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: Any = nn.ParameterList(
            [nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))]
        )
        self.named = nn.ParameterDict({"scale": self.listed[1]})

    def forward(self, x: Tensor) -> Any:
        return (x @ self.listed[0] + self.listed[1]).sin() * self.named["scale"]


class Counting(nn.Module):
    """A module whose call writes to a buffer, of which another buffer is a view."""

    whole: Tensor
    part: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.register_buffer("whole", torch.ones(4))
        self.register_buffer("part", self.whole[1:], persistent=False)

    def forward(self, x: Tensor) -> Any:
        self.whole.add_(1)
        return x @ self.weight * self.part.sum()


def _doubled(module: nn.Module, args: Any, result: Any) -> Any:
    """Double the result of a module: a hook that a copy can import."""
    return result * 2


def _hooked() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_forward_hook(_doubled)
    return module


def _frozen() -> nn.Module:
    module = nn.Linear(4, 4)
    module.weight.requires_grad_(False)
    return module


def _pruned() -> nn.Module:
    return prune.random_unstructured(nn.Linear(4, 4), "weight", 4)  # type: ignore[no-any-return]


def _transposed_weight() -> nn.Module:
    module = nn.Linear(4, 4)
    module.weight = nn.Parameter(module.weight.detach().t())
    return module


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "tied": Tied,
    "listed": Listed,
    "counting": Counting,
    "hooked": _hooked,
    "frozen": _frozen,
    "pruned": _pruned,
    "transposed_weight": _transposed_weight,
    "batch_norm": lambda: nn.BatchNorm1d(4),
    "evaluated_batch_norm": lambda: nn.BatchNorm1d(4).eval(),
    "nested": lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4))),
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)).eval(),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 4, 0.0, batch_first=True),
}
"""What is copied, by the name of its row."""


def _filled(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a module in double precision that has been called once, from the same draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make().double()
        module(torch.randn(3, 4, dtype=torch.float64))
    return module


def _steps(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return results and gradients of two steps of training by hand, and which names are one."""
    found: list[Tensor] = []
    # under each name, so that a copy in which two names are no more one has as many
    names = [one for _, one in module.named_parameters(remove_duplicate=False)]
    for _ in range(2):
        module.zero_grad()
        result = module(x)
        result.square().sum().backward()
        found.append(result.detach())
        with torch.no_grad():
            found += [one.grad.clone() for one in names if one.grad is not None]
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)
    places = {id(one): place for place, one in enumerate(names)}
    found.append(torch.tensor([places[id(one)] for one in names]))
    return [*found, *(value.double() for value in module.state_dict().values())]


def _copied(make: Callable[[], nn.Module], original: nn.Module, made: str) -> Any:
    """Return a copy of a module, or another one that has loaded its state."""
    if made not in LOADS:
        return WAYS[made](original)
    other = make().double()
    state = original.state_dict()
    if LOADS[made]:  # a module has the very tensors that it is assigned
        state = copy.deepcopy(state)
    other.load_state_dict(state, assign=LOADS[made])
    return other


def _module_row(make: Callable[[], nn.Module]) -> Row:
    def program(x: Tensor, *, made: str) -> Results:
        original = _filled(make)
        found = _steps(_copied(make, original, made), x)
        return *found, *_steps(original, x)  # which has no share in the steps of the copy

    def definition(x: Tensor, *, made: str) -> Results:
        return *_steps(_filled(make), x), *_steps(_filled(make), x)

    return Row(program, definition, may_refuse=True)


# --- optimizers -----------------------------------------------------------------------------------

Trained = tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]
_OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "momentum": lambda leaves: torch.optim.SGD(leaves, lr=0.01, momentum=0.9),
    "adam": lambda leaves: torch.optim.Adam(leaves, lr=0.01, amsgrad=True),
    "adam_of_tensor_rate": lambda leaves: torch.optim.Adam(leaves, lr=torch.tensor(0.01)),
    "adadelta": lambda leaves: torch.optim.Adadelta(leaves, lr=0.1),
    "rprop": lambda leaves: torch.optim.Rprop(leaves, lr=0.01),
    "lbfgs": lambda leaves: torch.optim.LBFGS(leaves, lr=0.01, max_iter=2),
}


def _trained(name: str, x: Tensor) -> Trained:
    """Return a module, its optimizer and a schedule, two steps after their beginning."""
    module = _filled(Tied)
    optimizer = _OPTIMIZERS[name](list(module.parameters()))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    _train((module, optimizer, schedule), x)
    return module, optimizer, schedule


def _train(trained: Trained, x: Tensor) -> list[Tensor]:
    """Return losses, rates and parameters of two more steps."""
    module, optimizer, schedule = trained

    def closure() -> Any:
        optimizer.zero_grad()
        loss = module(x).square().sum()
        loss.backward()
        return loss

    found: list[Tensor] = []
    for _ in range(2):
        found.append(torch.as_tensor(optimizer.step(closure)).detach())
        schedule.step()
        found.append(torch.tensor([float(rate) for rate in schedule.get_last_lr()]))
        found += [parameter.detach().clone() for parameter in module.parameters()]
    return found


def _continued(original: Trained, name: str, made: str) -> Any:
    """Return a copy of what is trained, or another optimizer and schedule with the states."""
    if made not in LOADS:
        return WAYS[made](original)
    module = copy.deepcopy(original[0])
    optimizer = _OPTIMIZERS[name](list(module.parameters()))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.load_state_dict(original[1].state_dict())
    schedule.load_state_dict(original[2].state_dict())
    return module, optimizer, schedule


def _optimizer_row(name: str) -> Row:
    def program(x: Tensor, *, made: str) -> Results:
        original = _trained(name, x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the order of steps, which a copy does not know
            found = _train(_continued(original, name, made), x)
        return *found, *_train(original, x)  # which has no share in the steps of the copy

    def definition(x: Tensor, *, made: str) -> Results:
        return *_train(_trained(name, x), x), *_train(_trained(name, x), x)

    return Row(program, definition)


# --- rows -----------------------------------------------------------------------------------------


def _samples(ways: tuple[str, ...], shape: list[int]) -> list[dict[str, Any]]:
    return [{"args": [{"shape": shape}], "kwargs": {"made": way}} for way in ways]


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a matrix, and each way to copy a tensor."""
    return _samples(tuple(WAYS), [3, 4])


def samples_of_modules(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a batch, and the ways to copy a module whole."""
    return _samples(("deep_copy", "pickled", "saved", "saved_in_old_format", *LOADS), [3, 4])


globals().update({name: _tensor_row(state) for name, state in TENSORS.items()})
# a subclass says itself how a deep copy of it is made, and torch refuses one that does not
subclass = _tensor_row(TENSORS["subclass"], may_refuse=True)
globals().update({name: _module_row(make) for name, make in MODULES.items()})
globals().update({name: _optimizer_row(name) for name in _OPTIMIZERS})
