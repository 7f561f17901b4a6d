"""Give ordinary code the gradients of each sample: the context ``per_sample``.

It marks parameters and inputs, sees the calls of modules and of functions of torch, and places the
samples in the first states of recurrent layers.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from ..func import trees
from ..rules.samples.factors import Tensor, wide
from ..rules.samples.places import ALONE, Place, listed
from ..seam.ambient import Ambient
from ..seam.call_types import Arguments
from ..seam.levels import Value
from ..seam.locks import lock_of
from ..session.captures import CAPTURE
from ..session.leaf import as_leaf
from ..session.subclasses import NATIVE
from ..session.tensor import SESSION
from ..tape.running import current_stand_in, stand_in, step_down
from ..tape.values import edge_of
from ..torch_private.native_tensors import TensorBase
from ..torch_private.pytrees import pytree
from ..trace.provenance import here
from . import custom_functions as _functions  # noqa: F401  # it declares the rule of custom Functions
from .batch_means import REPLACED
from .batch_session import BatchSession
from .boundary_nodes import ParameterInput
from .distributed import refuse_part, refuse_wrapper
from .grads import LIMIT, Parameter, PerSampleGrads
from .states import PARAMETERS
from .terms import by_source, terms_of

_READS = frozenset(
    getattr(TensorBase, name).__get__ for name in ("T", "mT", "H", "mH", "real", "imag", "data")
)
"""Attributes that compute. All others only read or store a property."""
_SET_DATA = TensorBase.data.__set__  # type: ignore[attr-defined]


class per_sample(PerSampleGrads):
    """A context in which the backward pass of ordinary code gives the gradients of each
    sample, in factors.

    >>> model, x = torch.nn.Linear(2, 1), torch.eye(2)
    >>> with per_sample(model.parameters()) as grads:
    ...     model(x).pow(2).sum().backward()
    >>> [tuple(g.shape) for g in grads.materialize()]
    [(2, 1, 2), (2, 1)]

    ``params``: the parameters, as an iterable, a dictionary by name, or one tensor; those that do
    not require grad have no gradients. Results have the same structure. ``batch_dim``: where the
    batch lies in the arguments of the outermost module that is called, which are marked as the
    batch: each tensor made before the context whose size there is the number of samples.
    :meth:`batch` marks any other tensor, and :meth:`shared` says that one is no batch. From there
    on the samples are followed through every op.

    ``reduction``: how the loss follows from the losses of the samples, ``"sum"`` or ``"mean"``.
    None: as the program computes it. The gradients are those of the loss of each sample alone.
    ``.grad`` of ``params`` stays as it is. Several backward passes add up.

    ``RuntimeError`` where samples mix and the gradient passes there, such as batch norm or a
    softmax over the batch; it names the op and the module. As ``torch.nn.utils._per_sample_grad``
    in purpose, without rules by layer.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Mapping[str, Tensor] | Tensor,
        batch_dim: int = 0,
        *,
        reduction: str | None = None,
        memory_limit: int = LIMIT,
    ) -> None:
        if reduction not in (None, "sum", "mean"):
            raise ValueError(
                f"per_sample: reduction must be 'sum', 'mean' or None, got {reduction!r}"
            )
        tree: object = params
        if not isinstance(params, (torch.Tensor, Mapping)):
            tree = list(params)  # an iterator can be read only once
        self.batch_dim = batch_dim
        self._modules = Modules(self)
        self._session = BatchSession(reduction, self._modules.path)
        self._functions = _Functions(self)
        self._shared: dict[int, Tensor] = {}
        # results have the structure of the parameters, and errors name their paths
        spec = trees.flatten(tree)[1]
        paths = pytree.tree_flatten_with_path(tree)[0]
        self._leaves = [(pytree.keystr(path) or "the parameter", leaf) for path, leaf in paths]
        for name, leaf in self._leaves:
            if not isinstance(leaf, torch.Tensor):
                raise TypeError(f"per_sample: {name} must be a tensor, got {type(leaf).__name__}")
            self._enter(name, leaf)
        self._changes: int | None = (
            None  # the count of changes of the uses that `_own_parameters` shows
        )
        super().__init__([], spec, torch.zeros(0), (), memory_limit)

    def _enter(self, name: str, leaf: Tensor) -> None:
        """Make a tensor of the user a parameter on the tape."""
        if not leaf.requires_grad:
            return
        if isinstance(leaf, Value) and leaf._level is not SESSION:
            raise RuntimeError(
                f"per_sample: used inside {leaf._level.what}, with {name} a value of it. "
                "Use per_sample_grads there, which nests with all transforms and with jit."
            )
        refuse_part(name, leaf)
        # the value has the parameter's memory, and a history that ends at a node of its own
        inner = SESSION.lowered(leaf).detach()
        value = SESSION.wrap(inner, (ParameterInput(inner, name), 0))
        self._session.put(value, PARAMETERS)
        self._session.parameters[id(leaf)] = value

    # the context

    def __enter__(self) -> per_sample:
        """Begin to follow the calls of this thread. Raise if something else follows them."""
        if current_stand_in() is not None:
            raise RuntimeError(
                "per_sample: another per_sample, or forward mode, is active in this thread"
            )
        if CAPTURE.gradients is not None:
            raise RuntimeError(
                "per_sample: entered in a program that is captured. "
                f"Use per_sample_grads there, which nests with jit.{here()}"
            )
        stand_in(self._session)
        self._entered = ExitStack()
        self._entered.enter_context(self._functions)
        self._modules.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self._modules.end()
        self._entered.close()
        step_down()
        self._session.give_back()

    def batch(self, x: Tensor, dim: int | None = None) -> Any:
        """Return ``x`` as a batch, to be used in place of ``x``.

        ``dim``: the dimension with the samples. None: ``batch_dim``. ``RuntimeError`` if another
        batch has another number of samples.
        """
        value = _as_value(x)
        if dim is None:
            dim = self.batch_dim
        self._session.mark(value, dim)
        return value

    def shared(self, x: Tensor) -> Any:
        """Return ``x`` as a tensor that all samples share, to be used in place of ``x``.

        Examples: a mask, or a statistic of the batch. ``RuntimeError`` if ``x`` requires grad.
        """
        if x.requires_grad:
            raise RuntimeError(
                "per_sample: shared() is for constants, "
                "and this tensor requires grad. Detach it first"
            )
        value = SESSION.wrap(SESSION.lowered(x).detach())
        self._shared[id(value)] = value
        return value

    def expect(self, size: int) -> None:
        """Set the number of samples to ``size``. Otherwise it is that of the first batch."""
        self._session.size = size

    def marked(self, args: Arguments) -> Any:
        """Return the arguments of the outermost module, with the batch marked. The fields of data
        classes are marked in place of their tensors."""

        def mark_leaf(argument: object) -> object:
            """Return one argument, marked if it is a batch."""
            if isinstance(argument, PackedSequence):
                return self._mark_packed(argument)
            if isinstance(argument, torch.Tensor):
                return self._mark_if_batch(argument)
            if is_dataclass(argument) and not isinstance(argument, type):
                return self._mark_fields(argument)
            return argument

        # a leaf: its rows are marked together, and its other tensors are no batches
        return pytree.tree_map(
            mark_leaf, args, is_leaf=lambda argument: isinstance(argument, PackedSequence)
        )

    def _mark_fields(self, argument: Any) -> object:
        """Return a copy of a data class with marked fields. The same object if no field is a
        batch."""
        # `replace` computes the other fields again
        own_fields = [field for field in fields(argument) if field.init]
        values = {field.name: getattr(argument, field.name) for field in own_fields}
        marked = {name: self.marked(value) for name, value in values.items()}
        if all(marked[name] is value for name, value in values.items()):
            return argument
        return replace(argument, **marked)

    def _mark_packed(self, packed: PackedSequence) -> PackedSequence:
        """Return a packed sequence whose rows are marked with their samples.

        Its rows are the first elements of all sequences, then the second ones, and so on.
        """
        data = _as_value(packed.data)
        sizes, indices = packed.batch_sizes, packed.sorted_indices
        numbers = torch.arange(int(sizes[0])) if indices is None else SESSION.lowered(indices)
        # longer sequences come first, so those that have a time step are the first ones
        owners = torch.cat([numbers[:count] for count in sizes.tolist()])
        self._session.mark_rows(data, owners)
        return PackedSequence(data, sizes, indices, packed.unsorted_indices)

    def _mark_if_batch(self, x: Tensor) -> object:
        """Return ``x``, marked if it comes from outside and has the size of a batch."""
        session, dim = self._session, self.batch_dim
        # the user has said of these what they are
        if id(x) in session.parameters or id(x) in self._shared:
            return x
        # a tensor made in the context of nothing from outside is a constant of the model
        if self._functions.made_inside(x) or x.dim() <= dim:
            return x
        if isinstance(x, Value) and (x._level is not SESSION or session.state(x) is not None):
            return x
        # an argument of another size is no batch, such as a mask
        if session.size not in (None, x.shape[dim]):
            return x
        value = self.batch(x)
        session.supposed[id(value)] = value
        return value

    # what was found

    @property
    def _parameters(self) -> Sequence[Parameter]:
        """Return the parameters with the terms of all backward passes so far."""
        uses, changes = self._session.uses.settled(), self._session.uses.changes
        if self._changes != changes:
            self._changes = changes
            # terms are collected anew if a backward pass has added uses
            sources = by_source(uses)
            self._own_parameters = [
                Parameter(name, leaf.detach(), self._terms(leaf, sources))
                for name, leaf in self._leaves
            ]
        self._held = self._session.uses.held()
        if not uses:
            raise RuntimeError(
                "per_sample: no backward pass has come to a use of the parameters, "
                "so there are no gradients"
            )
        return self._own_parameters or []

    def _give_up(self) -> None:
        self._own_parameters, self._held = [], []
        self._session.uses.clear()

    def __len__(self) -> int:
        return self._session.size or 0

    def _zeros(self, *shape: int) -> Tensor:
        leaf = self._leaves[0][1]
        return torch.zeros(shape, dtype=wide(leaf.new_empty(0)).dtype.to_real(), device=leaf.device)

    def _terms(self, leaf: Tensor, sources: Any) -> list[Any]:
        """Return the gradients of a leaf by its uses. A leaf that does not require grad has
        none."""
        value = self._session.parameters.get(id(leaf))
        if value is None or not self._session.size:
            return []
        end = edge_of(value)
        if end is None:
            return []
        return terms_of(SESSION, end, SESSION.lowered(leaf).detach(), sources)


def _as_value(x: Tensor) -> torch.Tensor:
    """Return ``x`` as a value of a level: a plain tensor as a leaf of the session."""
    if isinstance(x, Value):
        return x
    return as_leaf(x)


class _Functions(TorchFunctionMode):
    """Gives torch functions the values that stand for the parameters, and notes which tensors
    are made inside."""

    def __init__(self, grads: per_sample) -> None:
        super().__init__()
        self.session = grads._session
        self._made: dict[int, weakref.ref[Tensor]] = {}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Call a function of torch with the values that stand for parameters."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # the session replaces some functions of torch; the native one is compared
        native = NATIVE.get(func, func)
        if name in ("__get__", "__set__", "__delete__") and native not in _READS:
            if native == _SET_DATA:
                self._refuse_data(args[1])
            return func(*args, **kwargs)
        # values that stand for the parameters, in place of the parameters
        tensors: list[Tensor] = []
        args = [self._value(argument, tensors) for argument in args]
        if kwargs:
            kwargs = {key: self._value(argument, tensors) for key, argument in kwargs.items()}
        # a module makes the first states of a recurrent layer itself, of zeros
        if name in LAYERS and len(args) > 3:
            args = with_placed_states(self.session, args)
        out = REPLACED.get(func, func)(*args, **kwargs)
        if type(out) is torch.Tensor:
            self._note_if_made_inside(out, tensors)
        return out

    def _note_if_made_inside(self, out: torch.Tensor, tensors: list[Tensor]) -> None:
        """Note a plain tensor that follows from none but such. ``tensors``: the arguments."""
        if all(map(self.made_inside, tensors)):
            self._made[id(out)] = weakref.ref(out)

    def _refuse_data(self, data: object) -> None:
        """Raise if a plain tensor is about to show memory that the session follows."""
        if isinstance(data, Value) and self.session.state(data) is not None:
            raise RuntimeError(
                "per_sample: .data of a plain tensor is set to what follows from samples "
                "or parameters. Use copy_()"
            )

    def made_inside(self, tensor: Tensor) -> bool:
        """Return whether ``tensor`` is a plain tensor that was made in the context of nothing from
        outside."""
        reference = self._made.get(id(tensor))
        return reference is not None and reference() is tensor

    def _value(self, a: object, tensors: list[Tensor]) -> Any:
        """Return what a function gets for its argument ``a``: for a tensor that requires grad its
        value of the session. ``tensors``: gets the tensors in ``a``."""
        if type(a) is list or type(a) is tuple:
            return type(a)([self._value(item, tensors) for item in a])
        if not isinstance(a, torch.Tensor):
            return a
        tensors.append(a)
        # without a history nothing is differentiated, and the values would be in the way
        if not torch.is_grad_enabled():
            return a
        value = self.session.parameters.get(id(a))
        if value is not None:
            return value
        if isinstance(a, Value) or not a.requires_grad:
            return a
        return as_leaf(a)


class Modules:
    """The modules of one context whose calls are running, outermost first."""

    def __init__(self, grads: per_sample) -> None:
        self.grads = weakref.ref(grads)
        self.stack: list[torch.nn.Module] = []

    def begin(self) -> None:
        """Follow the calls of modules in this thread."""
        _CALLS.of_thread = self
        _intercept(1)

    def end(self) -> None:
        """Stop following the calls of modules in this thread."""
        _CALLS.of_thread = None
        _intercept(-1)

    def call(self, module: torch.nn.Module, args: Any, kwargs: dict[str, object]) -> Any:
        """Call a module, with the batch marked if it is the outermost one."""
        refuse_wrapper(module)
        if not self.stack:
            grads = self.grads()
            assert grads is not None  # it is entered
            args, kwargs = grads.marked((args, kwargs))
        self.stack.append(module)
        try:
            return _native_call(module, *args, **kwargs)
        finally:
            self.stack.pop()

    def path(self) -> str:
        """Return the module that runs now, by its path from the outermost one."""
        if not self.stack:
            return "the program"
        outermost, inner = self.stack[0], self.stack[-1]
        # a module that the outermost one does not contain has no path
        names = [name for name, module in outermost.named_modules() if module is inner and name]
        kind = type(inner).__name__
        if not names:
            return f"a {kind}"
        return f"{names[0]} ({kind})"


class _Calls(Ambient):
    """The modules whose calls this thread follows for ``per_sample``."""

    of_thread: Modules | None = None


_CALLS = _Calls()
_native_call = torch.nn.Module.__call__
_lock = lock_of(sys.modules[__name__], "_lock")
_entered = 0


def _call_module(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
    """Call a module, by :class:`Modules` if this thread follows calls."""
    modules = _CALLS.of_thread
    if modules is None:
        return _native_call(self, *args, **kwargs)
    return modules.call(self, args, kwargs)


def _intercept(change: int) -> None:
    """Count the contexts that are entered, in all threads. While there are any, calls of modules
    are followed."""
    global _entered
    with _lock:
        _entered += change
        # outside of contexts, torch's own method costs nothing more
        torch.nn.Module.__call__ = _call_module if _entered else _native_call  # type: ignore[method-assign]


# --- first states of recurrent layers -------------------------------------------------------------
#
# In the first states of a recurrent layer the samples lie in dimension 1, whatever ``batch_first``
# says of its input.
#
# A state that is learned, such as ``h.expand(1, batch, -1)`` of a parameter, becomes one of the
# samples.

LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions of torch: ``(input, hx, params, …, batch_first)``, and
``(data, batch_sizes, hx, params, …)`` for packed sequences."""


def with_placed_states(session: BatchSession, args: Arguments) -> list[object]:
    """Return the arguments of such a function, with the samples placed in the first states. They
    are tensors of zeros or what the user gives."""
    packed = isinstance(args[3], (list, tuple))  # the parameters, after one argument more
    at = 2 if packed else 1
    x, hx = args[0], args[at]
    are_several = isinstance(hx, (list, tuple))
    states = list(hx) if are_several else [hx]
    # `batch_first` is the last argument; a packed sequence has one dimension for all
    batch_dim = 0 if packed or args[-1] else 1
    place = _place_in_states(session, x, batch_dim, states[0], packed)
    arguments = list(args)
    if place is None:
        return arguments
    placed = [_place_state(session, state, place) for state in states]
    arguments[at] = placed if are_several else placed[0]
    return arguments


def _place_in_states(
    session: BatchSession, value: Tensor, batch_dim: int, first: Tensor, packed: bool
) -> Place | None:
    """Return the place in the first states, of which ``first`` is one. None if the input ``value``
    has no samples, or not in its ``batch_dim``: the ops of the layer say what is wrong."""
    place = session.state_of(value)
    if not isinstance(place, Place):
        return None
    if place is ALONE:
        return place
    assert session.size is not None
    sequences = first.shape[1]
    # the first time step of a packed sequence has all of them
    owners = place.owners(session.size, value.device)[:sequences]
    if owners.numel() != sequences or place.dim != batch_dim:
        return None
    return listed(1, owners, session.size, packed)


def _place_state(session: BatchSession, h: object, place: Place) -> object:
    """Return a first state with the samples in ``place``."""
    if session.is_parameter(h):
        ones = SESSION.wrap(torch.ones_like(SESSION.lowered(h)))
        session.put(ones, place)
        return h * ones  # each sample uses its part of the parameter
    if isinstance(h, Value) and session.state(h) is not None and id(h) not in session.supposed:
        return h
    value: Any = h
    if not isinstance(h, Value):
        value = SESSION.wrap(h)
    session.put(value, place)
    return value
