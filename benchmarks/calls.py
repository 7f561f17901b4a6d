"""The cost of calls under the drop-in that are mostly not ops: indexing, questions, modules,
optimizers, recurrent layers, imports.

Each case is written with torch's own names. It is made and run both under the drop-in and without
it. The tensors are so small that only the cost of calls shows.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import runtime.dropin
from benchmarks.cells import Cell

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """`make()` makes the tensors and returns the call. Its time should be at most `goal`
    times that of torch."""

    name: str
    what: str
    make: Callable[[], Call]
    goal: float | None = None


def _tensor(*shape: int, recorded: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.rand(shape).requires_grad_(recorded)


def reading(recorded: bool) -> Call:
    x = _tensor(3, 4, 5, recorded=recorded)
    return lambda: x[0, 1, 2]


def row(index: Any) -> Call:
    x = _tensor(3, 4, 5)
    return lambda: x[index]


def writing(value: Any) -> Call:
    x = _tensor(3, 4, 5)

    def write() -> object:
        x[0, 1, 2] = value
        return x

    return write


def writing_recorded() -> Call:
    x, v = _tensor(3, 4, 5), _tensor(recorded=True)

    def write() -> object:
        buffer = x.clone()
        buffer[0, 1, 2] = v
        return buffer

    return write


def asking(question: Callable[[torch.Tensor], object], *shape: int) -> Call:
    x = _tensor(*shape)
    return partial(question, x)


def constructing() -> Call:
    def construct() -> object:
        return nn.Linear(4, 4).weight.shape[0]

    return construct


def calling(module: nn.Module, *shape: int, grad: bool = True) -> Call:
    x = _tensor(*shape)

    def call() -> object:
        with torch.set_grad_enabled(grad):
            result: object = module(x)
        return result

    return call


def linear(*shape: int, grad: bool = True, bias: bool = True) -> Call:
    torch.manual_seed(0)
    return calling(nn.Linear(4, 4, bias=bias), *shape, grad=grad)


def stepping(optimizer: Callable[..., torch.optim.Optimizer], **options: Any) -> Call:
    p = nn.Parameter(_tensor(4))
    p.grad = _tensor(4) / 100
    return optimizer([p], **options).step


def forward(layer: Callable[..., nn.Module], *shape: int, **options: Any) -> Call:
    torch.manual_seed(0)
    module, x = layer(4, 4, **options), _tensor(*shape)
    return lambda: _first(module(x))


def forward_and_backward(layer: Callable[..., nn.Module], *shape: int, **options: Any) -> Call:
    torch.manual_seed(0)
    module, x = layer(4, 4, **options), _tensor(*shape)
    parameters = list(module.parameters())

    def step() -> object:
        for p in parameters:
            p.grad = None
        _first(module(x)).sum().backward()
        return [p.grad for p in parameters]

    return step


def transformed(layer: Callable[..., nn.Module], *shape: int, **options: Any) -> Call:
    """The gradient by the parameters, by `torch.func.grad`."""
    torch.manual_seed(0)
    module, x = layer(4, 4, **options), _tensor(*shape)
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(p: dict[str, torch.Tensor]) -> torch.Tensor:
        return _first(torch.func.functional_call(module, p, (x,))).sum()

    return partial(torch.func.grad(loss), parameters)


def _first(results: Any) -> torch.Tensor:
    found: torch.Tensor = results if isinstance(results, torch.Tensor) else results[0]
    return found


def resampling(mode: str, dims: int, recorded: bool) -> Call:
    x = _tensor(1, 2, *(3,) * dims, recorded=recorded)

    def call() -> object:
        if not recorded:
            return F.interpolate(x, scale_factor=2, mode=mode)
        x.grad = None
        F.interpolate(x, scale_factor=2, mode=mode).sum().backward()
        return x.grad

    return call


def cases() -> Iterator[Case]:
    """Every case. Those with a goal are promises of the project; the others show that similar calls
    are not much slower."""
    yield Case("x[0, 1, 2]", "call", partial(reading, False), 8)
    yield Case("x[0, 1, 2]", "recorded", partial(reading, True), 8)
    yield Case("x[0, 1, 2] = number", "call", partial(writing, 2.0), 8)
    yield Case("x[0, 1, 2] = tensor", "call", lambda: writing(_tensor()), 8)
    yield Case("x[0, 1, 2] = tensor", "recorded", writing_recorded, 8)
    indices: dict[str, Any] = {"x[0]": 0, "x[:, 1]": (slice(None), 1), "x[0:2]": slice(2)}
    yield from (Case(text, "call", partial(row, index)) for text, index in indices.items())
    yield Case("bool(x)", "call", partial(asking, bool), 6)
    yield Case(
        "bool((x == x).all())", "call", partial(asking, lambda x: bool((x == x).all()), 3, 4), 6
    )
    yield Case("x.item()", "call", partial(asking, lambda x: x.item()), 6)
    yield Case("float(x)", "call", partial(asking, float), 6)
    yield Case("len(x)", "call", partial(asking, len, 3, 4))
    yield Case("x.shape", "call", partial(asking, lambda x: x.shape, 3, 4))
    yield Case("x.dim()", "call", partial(asking, lambda x: x.dim(), 3, 4))
    yield Case("Linear(4, 4)", "call", constructing, 6)
    for shape in ((4,), (2, 4), (2, 3, 4)):
        yield Case(f"Linear of {shape}", "recorded", partial(linear, *shape), 6)
        yield Case(f"Linear of {shape}", "call", partial(linear, *shape, grad=False), 6)
        yield Case(f"Linear of {shape}, no bias", "recorded", partial(linear, *shape, bias=False))
    for foreach in (None, False, True):
        which = "" if foreach is None else f", foreach={foreach}"
        for optimizer in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
            goal = 5 if foreach is None or optimizer is not torch.optim.SGD else None
            yield Case(
                f"{optimizer.__name__} step{which}",
                "call",
                partial(stepping, optimizer, lr=1e-3, foreach=foreach),
                goal,
            )
    for layer in (nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell, nn.LSTMCell, nn.RNNCell):
        shape = (2, 4) if layer.__name__.endswith("Cell") else (5, 2, 4)
        yield Case(layer.__name__, "call", partial(forward, layer, *shape))
        yield Case(
            layer.__name__, "forward + backward", partial(forward_and_backward, layer, *shape), 4
        )
        yield Case(layer.__name__, "func.grad", partial(transformed, layer, *shape))
    deep = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    yield Case(
        "GRU, 2 layers, both ways",
        "forward + backward",
        partial(forward_and_backward, nn.GRU, 2, 5, 4, **deep),
        4,
    )
    for mode, dims in (
        ("nearest", 1),
        ("nearest", 2),
        ("nearest", 3),
        ("nearest-exact", 3),
        ("bilinear", 2),
        ("trilinear", 3),
    ):
        yield Case(f"upsample {mode} {dims}d", "call", partial(resampling, mode, dims, False), 3)
        yield Case(
            f"upsample {mode} {dims}d",
            "forward + backward",
            partial(resampling, mode, dims, True),
            3,
        )


def _both(case: Case) -> tuple[Call, Call]:
    with runtime.dropin.installed():
        ours = case.make()
    return ours, case.make()


def cells() -> Iterator[Cell]:
    for case in cases():
        yield Cell(
            "calls",
            "",
            case.name,
            case.what,
            "torch",
            partial(_both, case),
            case.goal,
            runtime.dropin.installed,
        )


_IMPORT = "import time, torch; start = time.process_time(); {}; print(time.process_time() - start)"
IMPORTS = {
    "import runtime": "import runtime",
    "runtime.dropin.install()": "import runtime.dropin; runtime.dropin.install()",
}


def imports(rounds: int = 5) -> dict[str, float]:
    """Seconds of processor time beyond `import torch`. Each import has its own processes."""

    def once(statement: str) -> float:
        command = [sys.executable, "-c", _IMPORT.format(statement)]
        return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    return {
        name: median(once(statement) for _ in range(rounds)) for name, statement in IMPORTS.items()
    }
