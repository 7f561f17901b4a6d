"""Ask questions that no signature of torch's answers, by small programs.

    answers()["clamp: gradient at its bounds"]      # "1.0 1.0" on torch 2.13, "0.0 0.0" on 2.14

torch's own engine answers, on the CPU. An answer is a short text: numbers, dtypes, the name of a
node, or the class of the exception that refuses.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from gen.torch_private.loaded_with_torch import keys_after_snapshot

NAN, INF = float("nan"), float("inf")
Function = Callable[..., Any]

AT_KINKS: dict[str, tuple[Function, list[float]]] = {
    "abs": (torch.abs, [0.0]),
    "sgn": (torch.sgn, [0.0]),
    "relu": (F.relu, [0.0, NAN]),
    "relu6": (F.relu6, [0.0, 6.0, NAN]),
    "hardtanh": (F.hardtanh, [-1.0, 1.0, NAN]),
    "hardswish": (F.hardswish, [-3.0, 3.0]),
    "hardsigmoid": (F.hardsigmoid, [-3.0, 3.0]),
    "leaky_relu": (F.leaky_relu, [0.0]),
    "elu": (F.elu, [0.0]),
    "celu": (F.celu, [0.0]),
    "selu": (F.selu, [0.0]),
    "threshold": (lambda x: F.threshold(x, 1.0, 0.0), [1.0]),
    "softshrink": (F.softshrink, [-0.5, 0.5]),
    "hardshrink": (F.hardshrink, [-0.5, 0.5]),
    "softplus": (F.softplus, [20.0]),
    "sqrt": (torch.sqrt, [0.0, -1.0]),
    "rsqrt": (torch.rsqrt, [0.0]),
    "log": (torch.log, [0.0, -1.0]),
    "reciprocal": (torch.reciprocal, [0.0]),
    "pow": (lambda x: x**0.5, [0.0]),
    "pow.zero": (lambda x: x**0.0, [0.0]),
    "sinc": (torch.sinc, [0.0]),
    "frac": (torch.frac, [1.0]),
    "floor": (torch.floor, [1.0]),
    "round": (torch.round, [0.5]),
    "sign": (torch.sign, [0.0]),
    "trunc": (torch.trunc, [1.0]),
    "logit": (lambda x: torch.logit(x, eps=0.25), [0.25, 0.75]),
    "nan_to_num": (torch.nan_to_num, [NAN, INF]),
    "entr": (torch.special.entr, [0.0]),
    "asin": (torch.asin, [1.0]),
    "acosh": (torch.acosh, [1.0]),
    "erfinv": (torch.erfinv, [1.0]),
    "heaviside": (lambda x: torch.heaviside(x, torch.ones_like(x)), [0.0]),
}
"""By op, a function of one tensor and where its derivative is a choice."""

OF_TWO: dict[str, Function] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp_min.Tensor": torch.clamp_min,
    "clamp_max.Tensor": torch.clamp_max,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "xlogy": torch.xlogy,
    "special_xlog1py": torch.special.xlog1py,
    "copysign": torch.copysign,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "logaddexp": torch.logaddexp,
    "float_power": torch.float_power,
    "dist": torch.dist,
}
"""By op, a function of two tensors."""
TIES: dict[str, tuple[float, float]] = {
    "equal": (1.0, 1.0),
    "zeros": (0.0, 0.0),
    "first is NaN": (NAN, 1.0),
    "second is NaN": (1.0, NAN),
}
"""Two numbers at which the gradients of such a function are a choice."""

OF_VECTORS: dict[str, tuple[Function, list[float]]] = {
    "max": (torch.max, [1.0, 1.0]),
    "min": (torch.min, [1.0, 1.0]),
    "max.dim": (lambda x: x.max(0).values, [1.0, 1.0]),
    "amax": (lambda x: x.amax(0), [1.0, 1.0]),
    "amin": (lambda x: x.amin(0), [1.0, 1.0]),
    "median": (torch.median, [1.0, 1.0, 2.0]),
    "cummax": (lambda x: x.cummax(0).values.sum(), [1.0, 1.0]),
    "topk": (lambda x: x.topk(1).values.sum(), [1.0, 1.0]),
    "sort": (lambda x: x.sort().values[0], [1.0, 1.0]),
    "prod": (torch.prod, [0.0, 2.0, 0.0]),
    "norm": (torch.norm, [0.0, 0.0]),
    "linalg_vector_norm.inf": (lambda x: torch.linalg.vector_norm(x, INF), [1.0, 1.0]),
    "linalg_vector_norm.one": (lambda x: torch.linalg.vector_norm(x, 1), [0.0, 1.0]),
    "logsumexp": (lambda x: x.logsumexp(0), [-INF, -INF]),
    "var": (torch.var, [1.0]),
    "std": (torch.std, [1.0, 1.0]),
    "cumprod": (lambda x: x.cumprod(0).sum(), [0.0, 2.0]),
    "softmax": (lambda x: x.softmax(0)[0], [INF, 0.0]),
    "nansum": (torch.nansum, [NAN, 1.0]),
    "renorm": (lambda x: torch.renorm(x[None], 2, 0, 1.0).sum(), [0.0, 0.0]),
    "l1_loss": (lambda x: F.l1_loss(x, torch.zeros_like(x)), [0.0, 1.0]),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), [0.0, 1.0]),
    "huber_loss": (lambda x: F.huber_loss(x, torch.zeros_like(x)), [0.0, 1.0]),
    "clamp": (lambda x: torch.clamp(x, 0.0, 1.0).sum(), [0.0, 1.0]),
    "clamp_min": (lambda x: torch.clamp_min(x, 0.0).sum(), [0.0]),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.0).sum(), [0.0]),
}
"""By op, a function of a vector to a number, and a vector where its gradient is a choice."""

OF_SPECIAL = (
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "erfcx",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log_ndtr",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "ndtri",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
)
"""Functions of `torch.special`: the gradient at 1, or that there is none."""

STRIDES: dict[str, Function] = {
    "sin": torch.sin,
    "add": lambda x: x + x.contiguous(),
    "sum.dim": lambda x: x.sum(0, keepdim=True),
    "softmax": lambda x: x.softmax(1),
    "clone": torch.clone,
    "flip": lambda x: x.flip(0),
    "cat": lambda x: torch.cat([x, x]),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "cumsum": lambda x: x.cumsum(1),
    "zeros_like": torch.zeros_like,
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "dropout.eval": lambda x: F.dropout(x, 0.5, training=False),
}
"""By op, a function of a tensor of four dimensions: the strides of its result."""
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.ones(2, 3, 4, 5).transpose(1, 3),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.ones(1, 3, 4, 1).expand(2, 3, 4, 5),
}

ALIASES: dict[str, Function] = {
    "reshape": lambda x: x.reshape(-1),
    "contiguous": torch.Tensor.contiguous,
    "flatten": torch.flatten,
    "to": lambda x: x.to(x.dtype),
    "expand_as": lambda x: x.expand_as(x),
    "dropout.eval": lambda x: F.dropout(x, 0.5, training=False),
    "linear.stack": lambda x: F.linear(x, torch.ones(2, 3)),
    "linear.stack with bias": lambda x: F.linear(x, torch.ones(2, 3), torch.ones(2)),
    "linear.transposed stack": lambda x: F.linear(x.transpose(0, 1), torch.ones(2, 3)),
    "real": torch.real,
    "conj": torch.conj,
    "narrow_copy": lambda x: x.narrow_copy(0, 0, 1),
    "atleast_1d": torch.atleast_1d,
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x)[0],
    "dequantize": lambda x: x.dequantize() if x.is_quantized else x.detach(),
    "nan_to_num": torch.nan_to_num,
    "resolve_conj": torch.resolve_conj,
    "matmul.vector": lambda x: x[0, 0] @ torch.ones(3),
}
"""By op, a function of a tensor of three dimensions: whether the result has its memory, whether it
is a view, and torch's name for its node."""

WRITES: dict[str, Callable[[Tensor], None]] = {
    "a number by a mask": lambda x: x.__setitem__(x > 0, 2.0),
    "a number by an index": lambda x: x.__setitem__(0, 2.0),
    "a number by a slice": lambda x: x.__setitem__(slice(0, 1), 2.0),
    "a tensor by an index": lambda x: x.__setitem__(0, torch.ones(())),
    "a tensor by indices": lambda x: x.__setitem__(torch.tensor([0]), torch.ones(1)),
}
"""Writes to a tensor of one dimension with a history: the nodes that it has then."""

REFUSED: dict[str, Callable[[], Any]] = {
    "sqrt of integers in place": lambda: torch.ones(1, dtype=torch.int64).sqrt_(),
    "item of several elements": lambda: torch.ones(2).item(),
    "a gradient of integers": lambda: torch.ones(1, dtype=torch.int64).requires_grad_(),
    "a leaf written in place": lambda: torch.ones(1, requires_grad=True).add_(1),
    # behind a lambda, since the functions stand further down
    "third derivative of batch_norm": lambda: _third(lambda x: _normalize(x)),
    "cholesky of an indefinite matrix": lambda: torch.linalg.cholesky(-torch.eye(2)),
    "as_strided beyond the storage": lambda: torch.ones(2).as_strided((3,), (1,)),
    "resize of a view": lambda: torch.ones(2, requires_grad=True).detach().resize_(3),
    "grad_dtype of a result": lambda: (torch.ones(1, requires_grad=True) * 2).grad_dtype,
    "where of two dtypes": lambda: torch.where(torch.ones(1) > 0, torch.ones(1), 1j),
    "in-place promotion": lambda: torch.ones(1, dtype=torch.int32).add_(1.5),
    "a call passed on in inference mode": lambda: _pass_on(),
    "a gradient for no inputs": lambda: torch.autograd.grad(_number(), []),
    "a dictionary of inputs": lambda: torch.autograd.grad(x := _number(), {"x": x}),
    "a second pass over what a policy saved": lambda: _passes_over_saved(),
    "vmap of item": lambda: torch.func.vmap(lambda x: x.item())(torch.ones(2)),
    "vmap of data": lambda: torch.func.vmap(lambda x: x.data)(torch.ones(2)),
}
"""Programs that some version of torch refuses: by which exception."""
SAID: dict[str, Callable[[], Any]] = {
    "no inputs": lambda: torch.autograd.grad(_number(), []),
    "an input that is not used": lambda: torch.autograd.grad(_number(), [_number()]),
    "a write to one of several views": lambda: _parts()[0].add_(1),
}
"""Programs that are refused: the first sentence of the error, which programs match on."""

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
PROMOTING: dict[str, Function] = {
    "add": torch.add,
    "div": torch.div,
    "pow": torch.pow,
    "where": lambda a, b: torch.where(torch.tensor(True), a, b),
    "atan2": torch.atan2,
    "floor_divide": torch.floor_divide,
}
"""Functions of two tensors: the dtype of the result, for each pair of dtypes."""


def answers() -> dict[str, str]:
    """Return all questions with what the installed torch answers, sorted."""
    # Versions of torch warn of different things here. Only the answers are facts.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(sorted((name, _answer(ask)) for name, ask in _questions()))


def _questions() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield all questions, each with the function that answers it."""
    # The text of a question is a key of every lock, so another wording is another fact.
    for op, (of_one, points) in AT_KINKS.items():
        vectors = [[point] for point in points]
        yield f"{op}: gradient at {_texts(points)}", partial(_gradients, of_one, vectors)
    for op, of_two in OF_TWO.items():
        for where, pair in TIES.items():
            yield f"{op}: gradients, {where}", partial(_of_two, of_two, pair)
    for op, (of_vector, vector) in OF_VECTORS.items():
        yield f"{op}: gradient at [{_texts(vector)}]", partial(_gradients, of_vector, [vector])
    for op in OF_SPECIAL:
        special = getattr(torch.special, op)
        yield f"special_{op}: gradient at 1", partial(_gradients, special, [[1.0]])
    yield "clamp: gradient at its bounds", partial(_bounds, torch.clamp)
    yield "clamp.Tensor: gradients at its bounds", _bounds_of_tensors
    for op, strided in STRIDES.items():
        for layout, make in LAYOUTS.items():
            yield f"{op}: strides, {layout}", partial(_strides, strided, make)
    for op, alias in ALIASES.items():
        yield f"{op}: memory and node", partial(_alias, alias)
    for what, write in WRITES.items():
        yield f"written: {what}", partial(_nodes, write)
    for what, program in REFUSED.items():
        yield f"refused: {what}", partial(_refusal, program)
    for what, program in SAID.items():
        yield f"said: {what}", partial(_message_of, program)
    for op, promoting in PROMOTING.items():
        for dtype in DTYPES:
            yield f"{op}: dtypes with {_name(dtype)}", partial(_promotions, promoting, dtype)
    yield "checkpoint: hooks that see what a policy saves", _hooks_of_a_policy
    yield "checkpoint: without a function", _use_decorator


def _answer(ask: Callable[[], str]) -> str:
    # A version of torch may lack the op or refuse the program, and that is an answer too.
    try:
        return ask()
    except Exception as error:
        return type(error).__name__


def _texts(numbers: Iterable[float]) -> str:
    return " ".join(str(float(number)) for number in numbers)


def _gradients(function: Function, points: list[list[float]]) -> str:
    """Return the gradients of a function at some points."""
    gradients = []
    for point in points:
        x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        y = function(x).sum()
        if not y.requires_grad:
            return "no gradient"
        gradients += torch.autograd.grad(y, x)[0].tolist()
    return _texts(gradients)


def _of_two(function: Function, pair: tuple[float, float]) -> str:
    """Return the gradients of a function by both of its arguments."""
    inputs = [torch.tensor([number], dtype=torch.float64, requires_grad=True) for number in pair]
    gradients = torch.autograd.grad(function(*inputs).sum(), inputs)
    return _texts(gradient.item() for gradient in gradients)


def _bounds(function: Function) -> str:
    """Return the gradient of a clamp by its input, at its bounds, which are numbers."""
    x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    return _texts(torch.autograd.grad(function(x, 0.0, 1.0).sum(), x)[0].tolist())


def _bounds_of_tensors() -> str:
    """Return the gradients of a clamp by its input and both bounds, at the bounds."""
    x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    low, high = (torch.full_like(x, value).requires_grad_() for value in (0.0, 1.0))
    grads = torch.autograd.grad(torch.clamp(x, low, high).sum(), (x, low, high))
    return ", ".join(_texts(grad.tolist()) for grad in grads)


def _strides(function: Function, make: Callable[[], Tensor]) -> str:
    return str(tuple(function(make()).stride()))


def _alias(function: Function) -> str:
    """Say whether a result has the memory of its argument, whether it is a view, and what its node
    is.
    """
    x = torch.ones(2, 4, 3, requires_grad=True)
    y = function(x)
    node = "no node" if y.grad_fn is None else y.grad_fn.name()
    same = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    memory = "the same memory" if same else "memory of its own"
    return f"{memory}, {'a view' if y._is_view() else 'no view'}, {node}"


def _nodes(write: Callable[[Tensor], None]) -> str:
    """Return the node of a tensor after a write to it, and the nodes that it leads to."""
    # a product, as torch refuses a write to a leaf
    x = torch.ones(3, requires_grad=True) * 1
    write(x)
    node: Any = x.grad_fn
    return f"{node.name()} of {[edge and edge.name() for edge, _ in node.next_functions]}"


def _refusal(program: Callable[[], object]) -> str:
    """Say by which exception a program is refused, or that it runs."""
    try:
        program()
    except Exception as error:
        return f"refused by {type(error).__name__}"
    return "runs"


def _message_of(program: Callable[[], object]) -> str:
    """Return the first sentence of the error that a program raises."""
    try:
        program()
    except Exception as error:
        return str(error).partition(". ")[0].strip().removesuffix(".")
    return "runs"


def _number() -> Tensor:
    """Return a leaf that requires grad."""
    return torch.ones((), requires_grad=True)


def _parts() -> Any:
    """Return views that one call made, of a tensor that is no leaf."""
    return (torch.ones(2, requires_grad=True) * 1).split(1)


def _passes_over_saved() -> None:
    """Run the backward pass twice over what a checkpoint's policy saved."""
    saving = partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    x = torch.ones(1, requires_grad=True)
    y = checkpoint(lambda x: x.sin().exp().sin(), x, use_reentrant=False, context_fn=saving)
    for _ in range(2):
        y.backward(retain_graph=True)


def _promotions(function: Function, dtype: torch.dtype) -> str:
    """Return the dtypes of results, with another argument of each dtype."""
    dtypes: Mapping[torch.dtype, str] = {
        other: _answer(partial(_dtype_of, function, dtype, other)) for other in DTYPES
    }
    return " ".join(dtypes.values())


def _dtype_of(function: Function, first: torch.dtype, second: torch.dtype) -> str:
    result = function(torch.ones(1, dtype=first), torch.ones(1, dtype=second))
    return _name(result.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _hooks_of_a_policy() -> str:
    """Return, by ``respect_saved_tensors_hooks``, how many tensors the hooks see, and which
    warnings come.
    """
    return ", ".join(
        f"{respected} {_seen_by_hooks(respected)}" for respected in (True, False, None)
    )


def _seen_by_hooks(respected: bool | None) -> str:
    """Return how many tensors hooks see in a checkpoint, and which warnings come."""
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    saving = partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    x = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as recorded, saved_tensors_hooks(pack, unpack):
        warnings.simplefilter("always")
        checkpoint(
            lambda x: x.sin().exp(),
            x,
            use_reentrant=False,
            context_fn=saving,
            respect_saved_tensors_hooks=respected,
        )
    return " and a ".join(
        [str(len(seen)), *sorted({warning.category.__name__ for warning in recorded})]
    )


def _use_decorator() -> str:
    """Return the result of a function that is checkpointed by a decorator."""
    decorator: Any = checkpoint(use_reentrant=False)  # type: ignore[call-arg]
    return str(decorator(torch.abs)(-torch.ones(())).item())


def _normalize(x: Tensor) -> Tensor:
    normalized: Tensor = nn.BatchNorm1d(2).double()(x)
    return normalized


class _Dispatched(Tensor):
    """A tensor whose calls arrive in Python."""

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> Tensor:
        return torch.ones(1)


@functools.cache  # an op can be defined once in a process
def _library() -> torch.library.Library:
    """Return a library with an op whose kernel in Python passes calls on.

    It replaces torch's own kernel for the first dispatch key of such tensors.
    """
    library = torch.library.Library("facts", "DEF")
    library.define("passed(Tensor x) -> Tensor")
    redispatch = torch.ops.facts.passed.default._handle.redispatch_boxed

    def pass_on(keys: Any, x: Tensor) -> Any:
        return redispatch(keys & keys_after_snapshot, x)

    library.impl("passed", pass_on, "PythonTLSSnapshot", with_keyset=True)
    return library


def _pass_on() -> None:
    """Call an op whose kernel passes the call on, in inference mode."""
    _library()
    with torch.inference_mode():
        torch.ops.facts.passed(torch.ones(1).as_subclass(_Dispatched))


def _third(f: Function) -> None:
    """Take the third derivative of a function."""
    x = torch.tensor([[0.0, 1.0], [2.0, 4.0], [3.0, -1.0]], dtype=torch.float64, requires_grad=True)
    y = f(x).sin().sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        y = gradient.sin().sum()
