"""Replace torch's factories under the drop-in by ones that return runtime tensors.

A call from the user's program returns a runtime tensor. Inside the handling of an ATen call the
same factory returns a plain tensor, because the rules of the runtime and torch's decompositions
make constants there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nested
import torch.signal.windows

from ..seam.levels import Value
from ..seam.literals import has_values, readable, stacked
from ..seam.scope import SCOPE, lifted
from ..seam.shells import VALUES
from ..seam.user_code import settle_error
from ..session.tensor import Tensor, unwrap, wrap
from ..tape.values import GradValue
from ..torch_private.dispatcher import DispatchKey, is_excluded
from ..torch_private.global_settings import allowed_globals, device_constructors
from ..torch_private.mode_stacks import number_of_function_modes, unseen_by_handlers
from ..torch_private.pytrees import pytree

_torch_tensor = torch.tensor
_torch_nested_tensor = torch.nested.nested_tensor
# not an autograd key: inference mode switches those off in user code too
_ABOVE_PYTHON = DispatchKey.PythonTLSSnapshot

_NAMES = {
    torch: (
        "arange as_tensor asarray bartlett_window blackman_window empty empty_permuted "
        "empty_strided eye from_dlpack from_file from_numpy frombuffer full hamming_window "
        "hann_window kaiser_window linspace logspace normal ones rand randint randn randperm "
        "range scalar_tensor sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor "
        "sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices "
        "zeros empty_like full_like ones_like rand_like randint_like randn_like zeros_like"
    ),
    torch.fft: "fftfreq rfftfreq",
    torch.nested: "as_nested_tensor nested_tensor",
    torch.signal.windows: (
        "bartlett blackman cosine exponential gaussian general_cosine general_hamming "
        "hamming hann kaiser nuttall"
    ),
    torch._utils: (
        "_rebuild_meta_tensor_no_storage _rebuild_nested_tensor _rebuild_parameter "
        "_rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor "
        "_rebuild_tensor_v2 _rebuild_tensor_v3"
    ),
}


def inside_dispatch() -> bool:
    """Return whether this code runs inside the handling of an ATen call."""
    return bool(is_excluded(_ABOVE_PYTHON))


def as_runtime(result: Any, requires_grad: bool = False) -> Any:
    """Return the result of a factory of torch as a runtime tensor. In a transformed function it
    becomes a value of that transform."""
    kind = type(result)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(wrap(result.detach()), result.requires_grad)
    if kind not in VALUES:
        result = wrap(result)  # raises for a nested tensor of the jagged layout
    if requires_grad:
        return result.requires_grad_()
    if SCOPE.levels:
        return lifted(result, result._level.number)
    return result


def _share_counter(tensor: Any) -> object:
    """Return ``tensor``, the result of ``ones_like`` or its like, wrapped again. In torch the value
    has got a version counter of its own. Saved tensors are checked by the counter of the inner
    tensor, so the two must share one."""
    if type(tensor) in (Tensor, GradValue):
        return tensor._level.wrap(tensor._inner, None)
    return tensor


def _tensor(data: Any, **kwargs: Any) -> object:
    """Do ``torch.tensor``."""
    if isinstance(data, Value):
        return data.detach().clone().to(kwargs.get("device"), kwargs.get("dtype"))
    return _read_lists(_torch_tensor)(data, **kwargs)


def _read_lists(read: Callable[..., object]) -> Callable[..., object]:
    """Return ``read``, a factory that reads nested lists, for lists with tensors in them."""

    @wraps(read)
    def make(*args: Any, **kwargs: Any) -> object:
        """Call ``read`` with numbers in place of tensors, or stack the tensors of a transform."""
        first = args[0] if args else None
        argument = kwargs.get("data", kwargs.get("obj", first))
        if not isinstance(argument, (list, tuple)):
            return read(*args, **kwargs)
        data = readable(argument)
        # the positional arguments after the data, by their names
        options = dict(zip(("dtype", "device"), args[1:], strict=False)) | kwargs
        options.pop("data", options.pop("obj", None))
        if has_values(data):
            return stacked(data, options.get("dtype"), options.get("device"))
        return read(data, **options)

    return make


def _nested_tensor(data: object, **kwargs: object) -> object:
    """Do ``torch.nested.nested_tensor``, which copies its arguments."""
    return _torch_nested_tensor(pytree.tree_map_only(Tensor, unwrap, data), **kwargs)


_READERS = {
    _torch_tensor: _tensor,
    _torch_nested_tensor: _nested_tensor,
    torch.as_tensor: _read_lists(torch.as_tensor),
    torch.asarray: _read_lists(torch.asarray),
}


def _wrap_factory(factory: Callable[..., object]) -> Callable[..., object]:
    """Return ``factory`` with results that are runtime tensors in a user's program."""
    alike = factory.__name__.endswith("_like")

    def as_own(result: object, requires_grad: bool) -> object:
        """Return the factory's result as a tensor of the session."""
        if alike:
            result = _share_counter(result)
        return as_runtime(result, requires_grad)

    @wraps(factory)
    def make(*args: object, requires_grad: bool = False, **kwargs: object) -> object:
        """Call the factory. Its result is plain inside the handling of an ATen call."""
        if inside_dispatch():
            if requires_grad:
                kwargs["requires_grad"] = True
            return factory(*args, **kwargs)
        try:
            result = factory(*args, **kwargs)
        except ValueError as error:
            # of an array or a buffer: its dtype and strides are no values of a trace
            settle_error(error)
            raise
        if not number_of_function_modes():
            return as_own(result, requires_grad)
        with unseen_by_handlers():  # a mode of the user's sees the factory alone
            return as_own(result, requires_grad)

    del make.__wrapped__  # a built-in function has no source to show
    return make


def wrapped_factories() -> dict[int, tuple[object, object]]:
    """Return ``{id of a factory: (factory, its replacement)}``."""
    return {id(factory): (factory, replacement) for factory, replacement in _WRAPPED}


def forget_tables() -> None:
    """Make torch build its tables of functions at the right time.

    The table of ``with torch.device(...)`` must hold torch's own factories, so it is built before
    the drop-in replaces them. The table of ``torch.load`` must hold the present ones, so it is
    dropped, and torch builds it again."""
    device_constructors()
    allowed_globals.cache_clear()


def _wrap_all() -> list[tuple[object, object]]:
    """List each factory of torch with its replacement."""
    factories: list[Any] = []
    for module, names in _NAMES.items():
        factories += [getattr(module, name) for name in names.split()]
    return [(factory, _wrap_factory(_READERS.get(factory, factory))) for factory in factories]


_WRAPPED = _wrap_all()
