"""The drop-in stands aside while torch captures a program: torch has its own names again, and the
program computes with plain tensors.

A capture (``torch.jit.trace``, ``torch.export``) works only with torch's own functions and tensors.
An :class:`Exchange` replaces the session's tensors by plain ones that share their memory, and puts
the session's tensors back afterwards.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from ..autograd import function
from ..autograd.function import Function
from ..autograd.function_node import INTERFACES
from ..seam.ambient import Ambient
from ..seam.levels import Value
from ..seam.own_modules import is_own_module
from ..session.tensor import Tensor, wrap
from ..torch_private.global_settings import script_tables
from ..torch_private.mode_stacks import without_modes
from ..torch_private.pytrees import pytree
from .patches import Patches


class _Captures(Ambient):
    """How many captures of torch's this thread is inside of."""

    depth = 0


_CAPTURES = _Captures()


def standing_aside() -> bool:
    """Return whether this thread is inside a capture by torch."""
    return _CAPTURES.depth > 0


@functools.cache
def _torch_class_of(cls: type) -> Any:
    """Return a subclass of torch's Function with the staticmethods of ``cls``, a subclass of ours.
    Under the drop-in programs make such."""
    # from the base to the class itself, so that the class overrides
    own = [kind for kind in reversed(cls.__mro__) if kind is not object and kind not in INTERFACES]
    members: dict[str, Any] = {}
    for kind in own:
        members.update(vars(kind))
    # slots of the class itself, and what our Function has noted of it
    for name in ("__dict__", "__weakref__", "_runtime_definition"):
        members.pop(name, None)
    meta: Any = type(torch.autograd.Function)
    return meta(cls.__name__, (torch.autograd.Function,), members)


@contextlib.contextmanager
def _functions_record_in_torch() -> Iterator[None]:
    """Inside, subclasses of our Function record calls with plain tensors on torch's tape."""
    ours = vars(Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if standing_aside():
            return _torch_class_of(cls).apply(*args, **kwargs)
        return function.apply(cls, args, kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Function.apply = ours  # type: ignore[method-assign]


@contextlib.contextmanager
def aside(patches: Patches) -> Iterator[None]:
    """Restore torch's own names for a ``with`` block. At its end the drop-in is back, also
    after an exception."""
    with patches.suspended(), _functions_record_in_torch():
        _CAPTURES.depth += 1
        try:
            yield
        finally:
            _CAPTURES.depth -= 1


def ours_unless_aside(
    theirs: Callable[..., object], ours: Callable[..., object]
) -> Callable[..., object]:
    """Return a function that calls ``theirs`` inside a capture and ``ours`` elsewhere."""

    @functools.wraps(theirs)
    def call(*args: object, **kwargs: object) -> object:
        if standing_aside():
            return theirs(*args, **kwargs)
        return ours(*args, **kwargs)

    return call


def _with_history(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the memory of ``tensor`` that is no leaf for torch, so that a captured
    program may write to it."""
    # the history comes from an empty tensor, so no memory is copied
    with torch.enable_grad():
        recorded = tensor.new_empty(0).requires_grad_().clone()
    recorded.data = tensor
    return recorded


class Exchange:
    """Pairs of a tensor of the session and a plain one with the same memory."""

    def __init__(self) -> None:
        self._plain: dict[int, tuple[Tensor, torch.Tensor]] = {}
        self._session: dict[int, Tensor] = {}

    def plain(self, tensor: Any) -> Any:
        """Return the plain tensor for a tensor of the session. For a parameter: a parameter.
        Anything else stays as it is."""
        if type(tensor) is not Tensor:
            return tensor
        pair = self._plain.get(id(tensor))
        if pair is not None:
            return pair[1]
        # what a program can ask of it: a parameter, whether it requires grad and is a leaf
        with without_modes():
            plain = tensor._inner.detach()
            if isinstance(tensor, torch.nn.Parameter):
                plain = torch.nn.Parameter(plain, tensor.requires_grad)
            elif tensor.requires_grad and tensor.is_leaf:
                plain.requires_grad_()
            elif tensor.requires_grad:
                plain = _with_history(plain)
        if tensor.is_leaf and tensor.grad is not None:
            plain.grad = self.plain(tensor.grad)
        # both tensors live as long as their entries, so that no other one gets an id of theirs
        self._plain[id(tensor)] = tensor, plain
        self._session[id(plain)] = tensor
        return plain

    def known(self, tensor: object) -> object:
        """Return the tensor of the session for a plain one that was made for it; anything else as
        it is."""
        return self._session.get(id(tensor), tensor)

    def session(self, tensor: Any) -> Any:
        """Return the tensor of the session for a plain one, made if there is none yet. Anything
        else stays as it is."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return tensor
        own = self._session.get(id(tensor))
        if own is None:
            own = wrap(tensor.detach(), tensor.requires_grad and tensor.is_leaf)
            if isinstance(tensor, torch.nn.Parameter):
                own = torch.nn.Parameter(own, tensor.requires_grad)  # type: ignore[assignment]
            self._session[id(tensor)] = own
            self._plain[id(own)] = own, tensor
        return own

    def plain_tree(self, tree: Any) -> Any:
        """Return ``tree`` with the plain tensor (:meth:`plain`) for each tensor of the session."""
        return pytree.tree_map_only(Tensor, self.plain, tree)

    def session_tree(self, tree: Any) -> Any:
        """Return ``tree`` with the tensor of the session (:meth:`session`) for each plain one."""
        return pytree.tree_map_only(torch.Tensor, self.session, tree)

    def session_module(self, module: torch.nn.Module) -> None:
        """Give ``module`` parameters and buffers of the session."""
        for part in module.modules():
            for names in (part._parameters, part._buffers, vars(part)):
                for name, value in list(names.items()):
                    names[name] = self.session(value)

    @contextlib.contextmanager
    def lent(self, *programs: object) -> Iterator[None]:
        """Put plain tensors into the modules, closures, globals and containers that the programs
        refer to, inside a ``with`` block."""
        replaced: list[tuple[_Names, Any, Tensor]] = []
        seen: set[int] = set()
        try:
            for program in programs:
                for place in _places(program, seen):
                    for name, value in list(place.items()):
                        if type(value) is Tensor:
                            replaced.append((place, name, value))
                            place[name] = self.plain(value)
            yield
        finally:
            # what the program has assigned in the meantime stays
            for place, name, value in reversed(replaced):
                if place.get(name) is self.plain(value):
                    place[name] = value


class _Names(Protocol):
    """Names of objects, in which a program finds its tensors: a dictionary, or what has the items
    of one. The names of a list are its positions."""

    def items(self) -> Iterable[tuple[Any, object]]: ...

    def get(self, name: Any, /) -> object: ...

    def __setitem__(self, name: Any, value: Any, /) -> None: ...


class _Cell:
    """The cell of a closure as a mapping of one name."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    def items(self) -> list[tuple[str, object]]:
        try:
            return [("contents", self._cell.cell_contents)]
        except ValueError:  # not bound yet
            return []

    def get(self, name: str) -> object:
        return self._cell.cell_contents

    def __setitem__(self, name: str, value: object) -> None:
        self._cell.cell_contents = value


class ScriptAttributes:
    """The tensors of a module of TorchScript, which has them below Python: parameters, buffers
    and others."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self._module: Any = module._c

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """List the tensors with their names."""
        attributes = script_tables(self._module)["named_attributes"]
        return [(name, value) for name, value in attributes if isinstance(value, torch.Tensor)]

    def get(self, name: str) -> object:
        return self._module.getattr(name)

    def __setitem__(self, name: str, value: object) -> None:
        self._module.setattr(name, value)


class _Items(list[object]):
    """A list as a mapping of its positions."""

    def __init__(self, items: list[object]) -> None:
        super().__init__(items)
        self._items = items

    def items(self) -> list[tuple[int, object]]:
        return list(enumerate(self._items))

    def get(self, index: int) -> object:
        return self._items[index]

    def __setitem__(self, i: Any, value: Any) -> None:
        self._items[i] = value


def _places(program: object, seen: set[int]) -> Iterator[_Names]:
    """Yield the mappings of names to objects in which a program finds its tensors."""
    # modules refer to one another in circles
    if id(program) in seen:
        return
    seen.add(id(program))
    yield from _mappings(program)
    for part in _parts(program):
        yield from _places(part, seen)


def _mappings(program: object) -> Iterable[_Names]:
    """Return the mappings of ``program`` itself, without those of its parts."""
    if isinstance(program, torch.jit.ScriptModule):
        return (ScriptAttributes(program),)
    if isinstance(program, torch.nn.Module):
        return (program._parameters, program._buffers, vars(program))
    if isinstance(program, FunctionType):
        return _mappings_of_function(program)
    if isinstance(program, dict):
        return (program,)
    if isinstance(program, list):
        return (_Items(program),)
    if _is_ordinary_object(program):
        return (vars(program),)
    return ()


def _parts(program: object) -> Iterable[object]:
    """Return the objects in which ``program`` may find further tensors."""
    if isinstance(program, torch.jit.ScriptModule):
        return list(program.children())
    if isinstance(program, torch.nn.Module):
        return [*vars(program).values(), *program._modules.values()]
    if isinstance(program, MethodType):
        return (program.__self__, program.__func__)
    if isinstance(program, functools.partial):
        return (program.func, program.args, program.keywords)
    if isinstance(program, FunctionType):
        return _parts_of_function(program)
    if isinstance(program, dict):
        return list(program.values())
    if isinstance(program, (list, tuple)):
        return program
    if _is_ordinary_object(program):
        return list(vars(program).values())
    return ()


def _is_ordinary_object(program: object) -> bool:
    """Tell whether ``program`` is an object of a user's class, whose attributes are all that it
    has."""
    if isinstance(program, (MethodType, functools.partial, tuple)):
        return False
    if isinstance(program, (type, ModuleType, torch.Tensor)):
        return False
    return hasattr(program, "__dict__") and not _of_torch(type(program))


def _mappings_of_function(function: FunctionType) -> Iterator[_Names]:
    """Yield the cells of ``function``, and its globals if one that it uses is a tensor."""
    if _of_torch(function):
        return
    yield from map(_Cell, function.__closure__ or ())
    if any(type(value) is Tensor for value in _used_globals(function)):
        yield _Globals(function.__globals__, _names(function.__code__))


def _parts_of_function(function: FunctionType) -> list[object]:
    """Return what ``function`` closes over, its globals and its defaults."""
    if _of_torch(function):
        return []
    closed_over: list[object] = []
    for cell in function.__closure__ or ():
        closed_over += [value for _, value in _Cell(cell).items()]
    return [
        *closed_over,
        *_used_globals(function),
        function.__defaults__,
        function.__kwdefaults__,
    ]


def _used_globals(function: FunctionType) -> list[object]:
    """Return the globals that ``function`` uses."""
    used = _names(function.__code__)
    return [value for name, value in function.__globals__.items() if name in used]


class _Globals:
    """The global names that a function uses."""

    def __init__(self, names: dict[str, object], used: set[str]) -> None:
        self._names, self._used = names, used

    def items(self) -> list[tuple[str, object]]:
        return [(name, self._names[name]) for name in self._used if name in self._names]

    def get(self, name: str) -> object:
        return self._names.get(name)

    def __setitem__(self, name: str, value: object) -> None:
        self._names[name] = value


def _names(code: CodeType) -> set[str]:
    """Return the global names in a function and those defined in it."""
    # the code of a function that is defined inside is a constant of the outer one
    inner_codes = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names}.union(*map(_names, inner_codes))


def _of_torch(program: FunctionType | type) -> bool:
    """Return whether torch or the runtime defines ``program``. Such code has no tensors of the
    user's."""
    module: str = getattr(program, "__module__", None) or ""
    return module.partition(".")[0] in ("torch", "functorch") or is_own_module(module)


class RefuseSession(TorchFunctionMode):
    """Raise for a tensor of the session during a capture. The capture would make a constant of
    it."""

    def __init__(self, capture: str) -> None:
        super().__init__()
        self._capture = capture

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Call ``func``, unless a value is among its arguments or inside of these."""
        kwargs = kwargs or {}
        if any(isinstance(tensor, Value) for tensor in pytree.arg_tree_leaves(*args, **kwargs)):
            raise RuntimeError(
                f"runtime.dropin: {self._capture} met a tensor in a place where "
                "the drop-in cannot replace it by a plain one. Pass it as an argument, "
                "or make it a parameter, buffer or attribute of the module."
            )
        return func(*args, **kwargs)
