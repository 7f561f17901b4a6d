"""Defines the tensor of users: a value of level zero, the eager autograd session.

It shares the storage of its inner tensor, so ``data_ptr``, ``_version`` and the like
are torch's own. Many errors are ``settled``: if a program is captured here, each later call of it
raises the same.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..facts.lock import probe
from ..rules.ops import DIFFERENTIABLE
from ..rules.record import extent
from ..seam.level_mode import entering, entering_mode
from ..seam.levels import Value, constant_of
from ..seam.scope import SCOPE, is_floating, lifted
from ..seam.surgery import now, refit, set_class
from ..seam.transforms_of_torch import (
    innermost_of_torch,
    of_returned_transform,
    refuse_wrapped,
    without_wrappers,
)
from ..seam.user_code import settled, unwatched
from ..tape import hooks
from ..tape.lift import users
from ..tape.metas import meta_of
from ..tape.nodes import AccumulateGrad, Node
from ..tape.values import GradValue, edge_of
from ..torch_private.fake_tensors import FakeTensor
from ..torch_private.mode_stacks import unseen_by_classes
from ..torch_private.native_tensors import (
    TensorBase,
    make_subclass,
    printed,
    set_state,
    with_suffixes,
)
from . import pickling
from .backward import backward
from .captures import CAPTURE
from .session import Session
from .tensor_checks import (
    NOT_A_LEAF,
    refuse_in_capture,
    refuse_unfit_data,
    refuse_unfit_flag,
    refuse_unfit_grad_dtype,
    refuse_unfit_gradient,
)

_base_by_dispatcher: Any = TensorBase.__dict__["_base"].__get__
_OWN_DTYPE: Any = object()
_OF_LEAVES_ALONE = probe("refused", "grad_dtype of a result") != "runs"


def _note_elements(tensor: torch.Tensor) -> None:
    """Tell a capture that the program reads the elements of ``tensor``."""
    mode = entering_mode()
    if mode is not None:
        mode.note_elements(tensor)


class Tensor(GradValue):
    """A ``torch.Tensor`` whose gradients are computed by this package's engine."""

    _grad: Any = None
    _grad_dtype: Any = _OWN_DTYPE
    # of a leaf; for any other tensor they are stored on its node
    _hooks: hooks.Hooks | None = None
    # of another tensor: a reference to that node, and what was assigned to ``_backward_hooks``
    _assigned: Any = None
    # of a leaf that has had a gradient; a backward pass takes it while it adds to the gradient
    _lock: Any = None
    _post_accumulate: hooks.Hooks | None = None
    # of a leaf that stands for a plain tensor of torch
    _deliver: Callable[[torch.Tensor], None] | None = None
    _stands_for: Callable[[], torch.Tensor | None] | None = None  # that tensor, as long as it lives

    def _become(self, kind: type) -> None:
        """Become an instance of ``kind`` for users: ``x.__class__ = kind``."""
        if kind is not self._shown:
            set_class(self, SESSION.class_of(kind))

    def _follows_base(self) -> bool:
        """Return whether this is a view without history that requires grad because its base does.
        It was taken without grad mode, or before the base required grad. As in torch it is a leaf,
        and its gradient is discarded."""
        view = self._view
        if view is None or self.dtype not in DIFFERENTIABLE or self.is_inference():
            return False  # as in torch, a view of an inference tensor does not follow its base
        return edge_of(view.base) is not None

    @property
    def requires_grad(self) -> bool:
        """Return whether a gradient of this tensor can be computed: it is a leaf with the flag, has
        a history, or is a view of a tensor that has one."""
        view = self._view
        if view is not None and view.generation != view.base._generation:
            # `edge_of` would take the history from the base, and may raise
            return self._req or bool(view.base.requires_grad)
        return self._req or edge_of(self) is not None or self._follows_base()

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise settled(RuntimeError("requires_grad must be a bool"))
        if value and not self.is_leaf:
            raise settled(
                RuntimeError("you can only change requires_grad flags of leaf variables.")
            )
        if value and not is_floating(self):
            raise settled(
                RuntimeError(
                    "only Tensors of floating point and complex dtype can require gradients"
                )
            )
        self.requires_grad_(value)

    @requires_grad.deleter
    def requires_grad(self) -> None:
        raise settled(RuntimeError("requires_grad must be a bool"))

    def start_leaf(self) -> torch.Tensor:
        """Do ``requires_grad_()`` for code of the runtime."""
        return self.requires_grad_()

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set the flag of a leaf, as ``torch.Tensor.requires_grad_``."""
        value = entering()
        # `inside` stands for this tensor in a program that is captured, each call of which does it
        if value is not None and (inside := value(self)) is not self:
            if CAPTURE.gradients is None:
                inside.requires_grad_(requires_grad)
            else:
                CAPTURE.gradients.require(self, requires_grad)
            return self
        return self.set_requires_grad(requires_grad)

    def set_requires_grad(self, requires_grad: bool) -> Tensor:
        """Set the flag as :meth:`requires_grad_` does, of this tensor itself while a program is
        captured."""
        if not self.is_leaf:
            if not requires_grad:
                raise settled(
                    RuntimeError(
                        "you can only change requires_grad flags of leaf variables. "
                        "detach() gives a tensor of the same values that has no history."
                    )
                )
            return self  # a result with a history has the flag already
        if requires_grad:
            refuse_unfit_flag(self)
        self._req = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        """Return whether this tensor is no result of a recorded call."""
        return self.grad_fn is None

    @property
    def grad(self) -> Any:
        """Return the gradient that backward passes have added up, None without one. Warn if none
        ever will, because this is no leaf."""
        if CAPTURE.gradients is not None:
            return unwatched(CAPTURE.gradients.gradient, self)
        refuse_in_capture("reads grad of")
        if self._grad is None and not self._retains and self._edge is not None:
            warnings.warn(NOT_A_LEAF, stacklevel=2)
        return self._grad

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if CAPTURE.gradients is not None:
            unwatched(CAPTURE.gradients.assign, self, value)
            return
        refuse_in_capture("assigns grad of")
        if value is not None:
            refuse_unfit_gradient(self, self.dtype_of_grad(), value)
            if not isinstance(value, Value):
                value = wrap(value)
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    @property
    def grad_dtype(self) -> torch.dtype | None:
        """Return the dtype that gradients of this leaf are cast to, None if they are not, as
        ``torch.Tensor.grad_dtype``. From torch 2.15 on results have one, too."""
        if _OF_LEAVES_ALONE and not self.is_leaf:
            raise settled(RuntimeError("grad_dtype can only be accessed on leaf tensors."))
        return self.dtype_of_grad()

    @grad_dtype.setter
    def grad_dtype(self, dtype: torch.dtype | None) -> None:
        refuse_unfit_grad_dtype(self, dtype)
        self._grad_dtype = dtype
        # graphs that lead to the leaf already convert the gradient by what its node says
        node = self._accumulator() if self._accumulator is not None else None
        if node is not None:
            node.metas = (meta_of(self, dtype),)

    def dtype_of_grad(self) -> torch.dtype | None:
        """Return ``grad_dtype`` without the check that this is a leaf, for callers that know."""
        if self._grad_dtype is _OWN_DTYPE:
            return self._inner.dtype
        return self._grad_dtype  # type: ignore[no-any-return]

    @property
    def data(self) -> Any:
        """Return a tensor of the same memory, without history and with its own version counter."""
        value = entering()
        inside: Any = self
        if value is not None:
            inside = value(self)
        if inside is not self:
            return inside.data
        data, acting = SESSION.wrap(_data_of(self._inner)), SESSION.acting()
        if acting is not SESSION:
            acting.follow_data(data, self)
        return data

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if not isinstance(new, torch.Tensor):
            raise settled(
                TypeError(f"Variable data has to be a tensor, but got {type(new).__name__}")
            )
        new = constant_of(new)
        refuse_unfit_data(self, new)
        if extent(new) != extent(self) or new.dtype is not self.dtype:
            self._accumulator = None  # the next one has the new shape and dtype
        acting = SESSION.acting()
        if acting is not SESSION:
            acting.follow_data(self, new)
        self._inner.data = unwrap(new)
        refit(self, SESSION.wrap(self._inner))

    @data.deleter
    def data(self) -> None:
        raise settled(RuntimeError("Deleting tensor data is not allowed. Delete tensor instead!"))

    @property
    def _base(self) -> Any:  # type: ignore[override]
        """Return the tensor that this is a view of, as ``torch.Tensor._base``. The dispatcher does
        not know a view that was recorded without it (see ``composite``)."""
        base = _base_by_dispatcher(self)
        if base is None and self._view is None:
            return None
        if base is None:
            return self._view.base
        # the dispatcher's base may be such a view itself
        if type(base) is Tensor and base._view is not None:
            return base._view.base
        return base

    def _is_view(self) -> bool:
        return self._base is not None

    @property
    def retains_grad(self) -> bool:  # type: ignore[override]
        """Return whether this is no leaf, and a backward pass writes its ``.grad`` all the
        same."""
        return self._retains and not self.is_leaf

    def retain_grad(self) -> None:
        """Let backward passes write the gradient of this tensor, no leaf, to its ``.grad``."""
        refuse_in_capture("calls retain_grad() of")
        edge = edge_of(self)
        if edge is None:
            raise settled(RuntimeError("can't retain_grad on Tensor that has requires_grad=False"))
        if self.is_leaf or self._retains:
            return
        hooks.retain(self, *edge)
        self._retains = True

    def register_hook(self, hook: hooks.Hook) -> RemovableHandle:
        """Call ``hook(grad)`` when the gradient of this tensor is complete, as
        ``torch.Tensor.register_hook``. It may return a replacement."""
        value = entering()
        # a program that is compiled registers it by every call
        inside: torch.Tensor = self
        if value is not None:
            inside = value(self)
        if inside is self:
            return super().register_hook(hook)
        return inside.register_hook(hook)  # type: ignore[no-any-return]

    def _own_hooks(self, node: Node, index: int) -> hooks.Hooks:
        """Return the dictionary of this tensor's hooks, of which the edge is ``(node, index)``."""
        if type(node) is not AccumulateGrad:
            registered: hooks.Hooks | None = self._backward_hooks
            if registered is None:
                self._assigned = None
                registered = node.hooks_of(index)
            return registered
        if self._hooks is None:
            self._hooks = node.hooks_of(0)
        return self._hooks

    @property
    def _backward_hooks(self) -> Any:
        edge = edge_of(self)
        if edge is None or type(edge[0]) is AccumulateGrad:
            return self._hooks
        if self._assigned is not None and self._assigned[0]() is edge[0]:
            return self._assigned[1]
        return (edge[0].tensor_hooks or {}).get(edge[1])

    @_backward_hooks.setter
    def _backward_hooks(self, new: Any) -> None:
        edge = edge_of(self)
        if edge is not None and type(edge[0]) is not AccumulateGrad:
            self._assigned = weakref.ref(edge[0]), new  # as in torch, its node does not change
            return
        self._hooks = new
        node = self._accumulator() if self._accumulator is not None else None
        if node is not None:
            node.tensor_hooks = None if new is None else {0: new}

    @_backward_hooks.deleter
    def _backward_hooks(self) -> None:
        raise settled(RuntimeError("Deletion of _backwards_hooks not allowed!"))

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call ``hook(tensor)`` after ``.grad`` of this leaf has changed, as
        ``torch.Tensor.register_post_accumulate_grad_hook``."""
        refuse_in_capture("registers a post accumulate grad hook of")
        if edge_of(self) is None:
            raise settled(
                RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
            )
        if not self.is_leaf:
            raise settled(
                RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
            )
        if self._post_accumulate is None:
            self._post_accumulate = OrderedDict()
        return hooks.register(self._post_accumulate, hook)

    def backward(
        self,
        gradient: torch.Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Sequence[torch.Tensor] | torch.Tensor | None = None,
    ) -> None:
        """Add the gradients of this tensor to the ``.grad`` of the leaves, see
        :func:`runtime.autograd.backward`."""
        backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def as_subclass(self, cls: type[torch.Tensor]) -> Tensor:  # type: ignore[override]
        """Return an instance of ``cls`` with the same memory and history, as
        ``torch.Tensor.as_subclass``."""
        return as_kind(torch.ops.aten.alias.default(self), cls)

    def numpy(self, *, force: bool = False) -> Any:
        """Return an array, as ``torch.Tensor.numpy``. Raise if the tensor requires grad, unless
        ``force``."""
        if not force and torch.is_grad_enabled() and self.requires_grad:
            raise settled(
                RuntimeError(
                    "Can't call numpy() on Tensor that requires grad. "
                    "Use tensor.detach().numpy() instead."
                )
            )
        return self._inner.numpy(force=force)

    def __array__(self, dtype: Any = None) -> Any:
        array = self.numpy()
        if dtype is None:
            return array
        return array.astype(dtype, copy=False)

    def __copy__(self) -> Tensor:
        return self._copy_with(self._inner.detach(), self.__getstate__())

    def _copy_with(self, inner: torch.Tensor, state: Any) -> Tensor:
        """Return a leaf with the inner tensor ``inner`` and the attributes ``state``. Class and
        ``requires_grad`` are those of this tensor."""
        leaf = as_kind(SESSION.wrap(inner), type(self))
        leaf._req = self.requires_grad
        return set_state(leaf, state)  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a copy with memory of its own, for ``copy.deepcopy``."""
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        value = entering()
        if value is not None and not self.requires_grad:
            inside = value(self)
            if inside is not self:
                memo[id(self)] = inside.clone()  # a call that a capture sees
                return memo[id(self)]  # type: ignore[no-any-return]
        # as in torch, the copy has neither gradient nor attributes
        if type(self) is Tensor and isinstance(self, torch.nn.Parameter):
            memo[id(self)] = copied = torch.nn.Parameter(
                wrap(self._inner.clone()), self.requires_grad
            )
            return copied  # type: ignore[return-value]
        copied = pickling.deep_copied(self, memo)
        if SCOPE.levels and not copied.requires_grad and _is_sole_user(self):
            memo[id(self)] = copied = lifted(copied, 0)
        return copied  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        _note_elements(self)
        return pickling.reduced(self, torch.Tensor, protocol)

    def __getstate__(self) -> Any:
        """Return the attributes that users and ``nn.Parameter`` have set on this tensor."""
        return pickling.state_of(self, _STATE)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        """Return the text of torch for the inner tensor, with the history of this one."""
        _note_elements(self)
        kind = getattr(type(self), "_kind", torch.Tensor)
        suffixes = _suffixes_of_history(self)
        with unseen_by_classes():
            required = not suffixes and self.requires_grad
            printable = pickling.plain_leaf(self, required)
            if required and not printable.requires_grad:  # a user's class, below the tape
                suffixes.append("requires_grad=True")
            if kind not in (torch.Tensor, type(printable)):
                printable = make_subclass(kind, printable, printable.requires_grad)
            text = printed(printable, tensor_contents=tensor_contents)
        if text.startswith("Parameter("):  # the instance below the tape is marked as one, too
            text = text[len("Parameter(") : -1]
        tangent = SESSION.tangent_of(self)
        if tangent is not None:
            suffixes.append(f"tangent={tangent!r}")
        if suffixes:
            text = with_suffixes(
                text[:-1], suffixes, text.index("(") + 1, force_newline=self._inner.is_sparse
            )
        if not isinstance(self, torch.nn.Parameter):
            return str(text)
        if kind is torch.Tensor:
            return f"Parameter containing:\n{text}"
        return f"Parameter({text})"


def _is_sole_user(tensor: Tensor) -> bool:
    """Return whether no other tensor shares the memory of ``tensor``. A level would not know copies
    that share memory as views. Sparse tensors cannot be asked."""
    return tensor.is_sparse or users(tensor._inner) == 2  # the value and its inner tensor


def _suffixes_of_history(tensor: Tensor) -> list[str]:
    """List what the text of ``tensor`` says about its history: nothing, or its node."""
    try:
        node = tensor.grad_fn
    except RuntimeError:  # the history of a view is lost
        return ["grad_fn=<Invalid>"]
    if node is None:
        return []
    return [f"grad_fn=<{type(node).__name__}>"]


def _new(name: str) -> Callable[..., object]:
    """Return the method ``Tensor.new_zeros`` or its like. It is torch's, but ``requires_grad``
    applies to our engine."""
    native: Any = Value.new_tensor if name == "new_tensor" else getattr(torch.Tensor, name)

    @functools.wraps(native)
    def method(self: Tensor, *args: object, requires_grad: bool = False, **kwargs: object) -> Any:
        result: Any = native(self, *args, **kwargs)
        if innermost_of_torch() is not None and not requires_grad:
            return result  # wrapped by torch, like any other result there
        result = wrap(result, requires_grad)
        if SCOPE.levels and not requires_grad:
            return lifted(result, result._level.number)
        return result

    return method


for _name in ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"):
    setattr(Tensor, _name, _new(_name))

# the attributes of the runtime itself, which are no attributes of the user's: see `__getstate__`
_OWN_CLASSES = [cls for cls in Tensor.__mro__ if issubclass(cls, Value)]
_STATE = frozenset(chain.from_iterable(cls.__annotations__ for cls in _OWN_CLASSES))
SESSION = Session(Tensor)


def wrap(t: torch.Tensor, requires_grad: bool = False) -> Tensor:
    """Return a runtime tensor that shares the storage of ``t``. A runtime tensor is returned as it
    is."""
    if not isinstance(t, Value):
        t = of_returned_transform(now(t))
        refuse_wrapped(t)
    if not isinstance(t, Value):
        kind = type(t)
        if t.requires_grad or kind is not torch.Tensor:
            t = _drop_history(t)
        t = SESSION.wrap(t)
        if kind is not torch.Tensor:
            t = as_kind(t, kind)
    if requires_grad:
        t = t.requires_grad_()
    return t  # type: ignore[return-value]


def _data_of(inner: torch.Tensor) -> torch.Tensor:
    """Return ``inner.data``. A user's class is asked for it by the dispatcher."""
    if dispatches(type(inner)):
        return inner.detach()
    return inner.data


def _drop_history(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` detached. It becomes a plain tensor unless its class handles its own ATen
    calls."""
    if not tensor.requires_grad and dispatches(type(tensor)):
        return tensor  # not detached: its constructor may still run, and then it can handle no call
    with unseen_by_classes():
        tensor = tensor.detach()
        if type(tensor) is torch.Tensor or dispatches(type(tensor)):
            return tensor
        return tensor.as_subclass(torch.Tensor)


def dispatches(kind: type[torch.Tensor]) -> bool:
    """Return whether a class of tensors handles its own ATen calls."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def as_kind(value: Any, kind: type[torch.Tensor]) -> Tensor:
    """Return ``value`` as a tensor of the session that is a ``kind`` for users. Nothing else may
    refer to ``value``."""
    kind = getattr(kind, "_kind", kind)
    cls = SESSION.class_of(kind)
    if cls is type(value):
        return value  # type: ignore[return-value]
    if issubclass(kind, FakeTensor):
        # a mode of torch's takes every instance of this class for its own
        return value  # type: ignore[no-any-return]
    if type(value._inner) is not torch.Tensor or dispatches(kind):
        with unseen_by_classes():
            tensor = SESSION.wrap(value._inner.as_subclass(kind))
    else:
        tensor = make_subclass(cls, value._inner)
    # all that `value` has, its history too, but an inner tensor of the new class stays
    inner = tensor.__dict__.get("_inner", value._inner)
    tensor.__dict__.update({**value.__dict__, "_inner": inner})
    return tensor  # type: ignore[no-any-return]


def tensor(
    data: object,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of the session with a copy of ``data``, as ``torch.tensor``.

    >>> tensor([1.0, 2.0], requires_grad=True)
    tensor([1., 2.], requires_grad=True)
    """
    return wrap(without_wrappers(torch.tensor(data, dtype=dtype, device=device)), requires_grad)


def unwrap(t: torch.Tensor) -> torch.Tensor:
    """Return the inner tensor of a runtime tensor of level zero. Anything else stays as it is."""
    return SESSION.lowered(t)  # type: ignore[no-any-return]
