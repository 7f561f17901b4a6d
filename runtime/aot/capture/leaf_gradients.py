"""Handle ``backward()`` and ``.grad`` in a program that is captured.

    @jit
    def step(x):
        p.grad = None
        model(x).sum().backward()
        p.data.sub_(p.grad)

The program runs on values that stand for its tensors, and a gradient is one of them. So it is not
written to ``p.grad`` but stored here. A call writes it when the graph has run. ``asked``: the
leaves whose gradients from before the call the program has read. They are arguments of the graph.
If the program reads another one, it is captured once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...seam.call_types import Arguments, Kernel, Keywords
from ...seam.containers import tensors_of
from ...seam.graph_walks import nodes_before
from ...seam.levels import Value
from ...seam.memory import refuse_data
from ...seam.user_code import settled, unwatched
from ...session import backward as session
from ...session.captures import CAPTURE
from ...session.leaf import plain_of
from ...session.subclasses import NATIVE
from ...session.tensor import Tensor
from ...tape import hooks
from ...tape.gradient_edges import GradientEdge
from ...tape.nodes import Edge, Input, Node, nodes_after, nodes_at
from ...tape.values import GradValue, edge_of
from ...torch_private.functorch_state import is_functorch_wrapped
from ...torch_private.global_settings import without_autocast
from ...torch_private.mode_stacks import all_handlers_enabled, unseen_by_handlers
from ...torch_private.native_tensors import TensorBase, other_name_of_grad
from ...torch_private.pytrees import pytree
from ...trace.provenance import here
from .kept_gradients import KeptGradient, as_gradient, memory_of, refuse_misfit
from .leaves import LeafIndex, edge_of_value, end_of, mode_of_program, nodes_of, reachable
from .program_tape import Argument, ProgramTape
from .subclass_parts import class_handles_functions

_grad: Any = TensorBase.grad  # what gives the attribute: torch's stubs take it for a tensor
_data_of: Any = TensorBase.data
_plain_grad = _grad.__get__
_requires_grad: Any = TensorBase.requires_grad
HOOKS = (
    "which a graph would not call. Do in the program what the hooks do, or call backward() outside."
)


class LeafGradients:
    """Store the gradients that one run of a program sees.

    ``given``: the gradients that are arguments of the graph, by id of the leaf or by key of an
    argument. ``arguments``: the values that stand for the program's tensor arguments, by key.
    """

    def __init__(self, given: Mapping[object, object], arguments: Mapping[object, object]) -> None:
        self.given = given
        self.arguments = arguments
        self._keys = {id(argument): key for key, argument in arguments.items()}
        self.asked: list[object] = []  # leaves, or keys of arguments
        self.added_at = ""  # the user's line of the first backward pass that reaches a leaf
        self.spent: set[Node] = set()  # nodes that a pass has freed
        # leaves, or keys of arguments, whose gradients torch.autograd.grad was asked for
        self.differentiated: list[object] = []
        self.differentiated_at = ""  # the user's line of the first such call
        self.used = False
        self.entering = False
        self._kept: dict[int | Node, KeptGradient] = {}
        # by id, a tensor from outside, and its value with a history
        self._frozen: dict[int, tuple[torch.Tensor, GradValue]] = {}
        # by id, a tensor from outside, and whether it required grad before the program
        self._flags: dict[int, tuple[torch.Tensor, bool]] = {}
        self._leaves = LeafIndex(arguments, self._frozen)
        self._mode: Any = _GradFunctions(self)

    def __enter__(self) -> LeafGradients:
        self._before, CAPTURE.gradients = CAPTURE.gradients, self
        self._mode.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._mode.__exit__(*exc)
        # A capture computes nothing, so it leaves the tensors outside as they were.
        for tensor, flag in self._flags.values():
            _set_flag(tensor, flag)
        CAPTURE.gradients = self._before

    @property
    def changed(self) -> list[tuple[object, object]]:
        """List (leaf or key of an argument, gradient) for each gradient that a call assigns."""
        return [
            (entry.leaf, entry.value)
            for entry in self._kept.values()
            if entry.changed and entry.leaf is not None
        ]

    @property
    def added(self) -> list[object]:
        """List the leaves, or keys of arguments, whose gradients grew in a backward pass."""
        return [
            entry.leaf for entry in self._kept.values() if entry.added and entry.leaf is not None
        ]

    @property
    def has_effects(self) -> bool:
        """Return whether the program has run a backward pass, or left a tensor frozen."""
        return bool(self.used or self.spent or self.frozen)

    def is_spent(self, value: object) -> bool:
        """Return whether the history of ``value`` has been freed by a backward pass."""
        if not isinstance(value, GradValue) or not isinstance(value._level, ProgramTape):
            return False
        edge = edge_of(value)
        if edge is None or not self.spent:
            return False
        return not self.spent.isdisjoint(reachable([edge[0]]))

    # what the program asks for

    def inside(self, tree: object) -> Any:
        """Return ``tree`` with the values of the program in place of tensors from outside."""
        # A fake tensor copies the `.grad` of its tensor, and that has to be torch's own.
        before, self.entering = self.entering, True
        try:
            return pytree.tree_map(mode_of_program().value, tree)
        finally:
            self.entering = before

    def as_value(self, grad: object) -> object:
        """Return the value of the program for a gradient; None if there is no gradient."""
        if grad is None:
            return None
        return self.inside(grad)

    def gradient(self, tensor: torch.Tensor) -> object:
        """Return ``tensor.grad`` as the program sees it."""
        entry = self._entry_of(tensor)
        if entry is not None:
            if not entry.known:
                self.read(entry)
            return entry.value
        # a computed value has a gradient only by retain_grad()
        if isinstance(tensor, Value):
            return tensor.__dict__.get("_grad")
        return self.plain_gradient(tensor)

    def read(self, entry: KeptGradient) -> None:
        """Find the gradient from before the call."""
        entry.known = True
        # the call has it as an argument already, or asks for it as a further one
        if entry.leaf is not None:
            is_tensor = isinstance(entry.leaf, torch.Tensor)
            key = id(entry.leaf) if is_tensor else entry.leaf
            if key in self.given:
                entry.value = self.given[key]
                return
            self.asked.append(entry.leaf)
            entry.value = self.as_value(self._gradient_of_leaf(entry.leaf))

    def drop(self, tensors: Iterable[torch.Tensor]) -> None:
        """Assign None to the gradients of ``tensors`` that nobody has read yet. Their gradients
        from before the call are no arguments of the graph."""
        with unseen_by_handlers():
            entries = [self._entry_of(tensor) for tensor in tensors]
        for entry in entries:
            if entry is not None and not entry.known:
                entry.known = entry.changed = True

    def _gradient_of_leaf(self, leaf: object) -> object:
        """Return the gradient that ``leaf`` has now; None for the key of an argument."""
        if not isinstance(leaf, torch.Tensor):
            return None
        if isinstance(leaf, Tensor):
            return leaf._grad
        return self.plain_gradient(leaf)

    def assign(self, tensor: torch.Tensor, g: object) -> None:
        """Do ``tensor.grad = g``."""
        if g is not None:
            refuse_misfit(g, tensor)
        entry = self._entry_of(tensor)
        if entry is None:
            raise RuntimeError(
                f"the program assigns a gradient to a tensor that it has computed.{here()}"
            )
        entry.value = self.as_value(g)
        entry.known = entry.changed = True

    def retain(self, tensor: Any) -> None:
        """Do ``tensor.retain_grad()``."""
        value = self.inside(tensor)
        edge = edge_of(value)
        if edge is None:
            raise settled(RuntimeError("can't retain_grad on Tensor that has requires_grad=False"))
        # a leaf has its gradient anyway
        if tensor.is_leaf or tensor.retains_grad:
            return
        if isinstance(edge[0], Argument):
            raise RuntimeError(
                "the program calls retain_grad() of a tensor that it is given, which has a "
                f"history. Call it before the program does.{here()}"
            )
        hooks.retain(value, *edge)
        value._retains, value._grad = True, None

    def require(self, tensor: torch.Tensor, flag: bool = True) -> object:
        """Do ``tensor.requires_grad_(flag)`` for a ``tensor`` from outside."""
        if tensor.requires_grad == flag or not tensor.is_leaf:
            return _set_flag(tensor, flag)
        mode = mode_of_program()
        self._flags.setdefault(id(tensor), (tensor, not flag))
        value = mode.value(tensor)
        # freeze, end the freeze, or begin a leaf
        if not flag:
            mode.exchange(tensor, value.detach())
            self._frozen[id(tensor)] = tensor, value
        elif id(tensor) in self._frozen:
            mode.exchange(*self._frozen.pop(id(tensor)))
        else:
            value.requires_grad_()
            entry, node = self._kept.pop(id(tensor), None), end_of(value)
            # The program read or assigned its gradient before it became a leaf.
            if entry is not None and node is not None:
                entry.like, self._kept[node] = value, entry
        return _set_flag(tensor, flag)

    @property
    def frozen(self) -> list[torch.Tensor]:
        """List the tensors that the program has frozen and leaves so."""
        return [tensor for tensor, _ in self._frozen.values() if id(tensor) in self._flags]

    def backward(
        self,
        tensors: object,
        grad_tensors: object,
        retain_graph: bool | None,
        create_graph: bool,
        inputs: object,
    ) -> None:
        """Run a backward pass, as ``torch.autograd.backward`` does."""
        self.used = True
        outputs, grad_outputs = session.listed(self.inside(tensors)), self.inside(grad_tensors)
        edges = list(map(edge_of_value, outputs))
        _refuse_other_levels(edges)
        cotangents = session.cotangents_of(outputs, edges, grad_outputs)
        # A single pass computes the gradients of all leaves that it reaches.
        reached = reachable(nodes_at(edges))
        leaves = self._leaves_of(reached, inputs)
        ends = [GradientEdge(node, 0) for node in leaves]
        with without_autocast():
            _, grads = session.run_pass(edges, cotangents, ends, retain_graph, create_graph, False)
        if not _stays(retain_graph, create_graph):
            self.spent |= reached.keys() - set(leaves)
        # Each gradient gets memory of its own, as a later pass adds to it in place.
        others = self._memories_shown(grad_outputs)
        for node, grad in zip(leaves, grads, strict=True):
            if grad is not None:
                self._add(node, hooks.for_users(node.level, grad), create_graph, others)

    def _leaves_of(self, reached: Mapping[Node, object], inputs: object) -> list[Argument | Input]:
        """List the leaves among the nodes that a pass reaches; only those of ``inputs``, if any.

        A leaf that does not require grad now gets no gradient.
        """
        # a leaf that does not require grad any more may still be behind the roots
        frozen = {end_of(value) for _, value in self._frozen.values()}
        ends = [node for node in reached if isinstance(node, (Argument, Input))]
        leaves = [node for node in ends if node not in frozen]
        if inputs is None:
            return leaves
        edges = map(edge_of, self.inside(session.listed(inputs)))
        wanted = set(nodes_at(edges))
        return [node for node in leaves if node in wanted]

    def _memories_shown(self, grad_outputs: object) -> set[int]:
        """Return the ids of the memories that a new gradient must not share.

        These are the memories of arguments, tensors from outside, gradients, and ``grad_outputs``.
        """
        mode = mode_of_program()
        cotangents = () if grad_outputs is None else grad_outputs
        shown = [
            *self.arguments.values(),
            *map(mode.value, mode.found),
            *(entry.value for entry in self._kept.values()),
            *session.listed(cotangents),
        ]
        return set(map(memory_of, shown))

    def grad(
        self,
        outputs: object,
        inputs: object,
        grad_outputs: object,
        retain_graph: bool | None,
        create_graph: bool,
        **options: Any,
    ) -> object:
        """Return gradients, as ``torch.autograd.grad`` does."""
        wanted = inputs.values() if isinstance(inputs, dict) else session.listed(inputs)
        for tensor in wanted:
            self.check_input(tensor)
        outputs, inputs = self.inside(outputs), self.inside(inputs)
        reached = reachable(nodes_of(outputs))
        with without_autocast():
            gradients = session.gradients_of(
                outputs, inputs, self.inside(grad_outputs), retain_graph, create_graph, **options
            )
        # Nodes that the pass has run have freed their saved tensors, and cannot run again.
        if not _stays(retain_graph, create_graph):
            self.spent |= nodes_before(nodes_of(inputs), reached, nodes_after)
        return gradients

    # leaves

    def _entry_of(self, tensor: torch.Tensor) -> KeptGradient | None:
        """Return the entry of leaf ``tensor``, or None if it is not a leaf.

        A leaf that does not require grad is included: it may still have an old gradient.
        """
        if id(tensor) in self._frozen:
            # Its value with a history has the node. The value that the program sees is detached.
            return self._entry_of_node(edge_of(self._frozen[id(tensor)][1])[0])  # type: ignore[index]
        if not tensor.requires_grad:
            return self._entry_without_grad(tensor)
        node = end_of(self.inside(tensor))
        if node is None:
            return None
        return self._entry_of_node(node)

    def _entry_without_grad(self, tensor: torch.Tensor) -> KeptGradient | None:
        """Return the entry of ``tensor``, which does not require grad; None for a value that the
        program has computed."""
        leaf = self._keys.get(id(tensor), tensor)
        if leaf is tensor and isinstance(tensor, Value) and tensor._level.number:
            return None
        return self._kept.setdefault(id(tensor), KeptGradient(leaf, tensor))

    def _entry_of_node(self, node: Node) -> KeptGradient:
        """Return the entry of the leaf at ``node``, a new one the first time."""
        entry = self._kept.get(node)
        if entry is None:
            entry = self._kept[node] = self._leaf(node)
            entry.known = entry.leaf is None
        return entry

    def _leaf(self, node: Node) -> KeptGradient:
        """Return a new entry for the leaf at ``node``."""
        at = self._leaves.at(node) or self._leaves.search(node)
        if at is None:
            return KeptGradient(None)
        leaf, value = at
        if isinstance(leaf, torch.Tensor) and not leaf.is_leaf:
            raise RuntimeError(
                "backward() in the program reaches a tensor that has a history from "
                f"before the call. Detach it, or pass what it was computed from.{here()}"
            )
        return KeptGradient(leaf, value)

    def _add(self, node: Node, g: Any, create_graph: bool, others: set[int]) -> None:
        """Add ``g`` to the gradient of the leaf at ``node``.

        ``others``: ids of memories that other tensors of the program show.
        """
        entry = self._entry_of_node(node)
        entry.added = True
        self.added_at = self.added_at or here()
        self.check_leaf(entry, node)
        if not entry.known:
            self.read(entry)
        # The tape accumulates likewise: in place, except for a gradient with a history.
        if entry.value is None:
            if not create_graph:
                g = as_gradient(g.detach(), entry.like, others)
            entry.value, entry.changed = g, True
        elif create_graph:
            entry.value, entry.changed = entry.value + g, True
        else:
            with torch.no_grad():
                entry.value.add_(g)
        self.after_adding(entry, node)

    def check_input(self, tensor: object) -> None:
        """Raise before a pass for the gradient of ``tensor`` if a graph would do something else."""
        if isinstance(tensor, GradientEdge):
            self._note_leaf(tensor.node)
        elif isinstance(tensor, Value) and tensor._level.number:
            self._note_leaf(end_of(tensor))
        elif isinstance(tensor, torch.Tensor):
            self._note_differentiated(tensor)

    def _note_differentiated(self, tensor: object) -> None:
        """Note a tensor from outside, or the key of an argument. Refuse a tensor with hooks."""
        self.differentiated.append(tensor)
        self.differentiated_at = self.differentiated_at or here()
        if hooked(tensor):
            raise RuntimeError(
                "torch.autograd.grad in the program asks for the gradient of a tensor with "
                f"hooks, {HOOKS}{here()}"
            )

    def _note_leaf(self, node: Node | None) -> None:
        """Note the leaf of ``node``. The node of a value that is computed has none."""
        if node is None:
            return
        leaf = self._leaves.at(node) or self._leaves.search(node)
        if leaf is not None:
            self._note_differentiated(leaf[0])

    def check_leaf(self, entry: KeptGradient, node: Node) -> None:
        """Raise before a backward pass adds to ``entry`` if a graph would do something else."""
        if hooked(entry.leaf) or node.pre_hooks or node.post_hooks:
            raise RuntimeError(
                "backward() in the program adds to the gradient of a tensor with "
                f"hooks, {HOOKS}{here()}"
            )

    def after_adding(self, entry: KeptGradient, node: Node) -> None:
        """Do what is due after a backward pass has added to ``entry``. Here that is nothing."""

    @staticmethod
    def plain_gradient(tensor: torch.Tensor) -> torch.Tensor | None:
        """Return ``tensor.grad`` without a capture seeing it."""
        with unseen_by_handlers():
            return _plain_grad(tensor)  # type: ignore[no-any-return]


def _set_flag(tensor: torch.Tensor, flag: bool) -> object:
    """Do ``tensor.requires_grad_(flag)`` without a capture seeing it."""
    if isinstance(tensor, Tensor):
        return tensor.set_requires_grad(flag)
    with unseen_by_handlers():
        return tensor.requires_grad_(flag)


def hooked(leaf: object) -> bool:
    """Return whether a backward pass calls hooks when it adds to the gradient of ``leaf``."""
    if has_tensor_hooks(leaf) or getattr(leaf, "_post_accumulate", None):
        return True
    # a leaf of the session may stand for a plain tensor, which has the hooks
    return bool(getattr(plain_of(leaf), "_post_accumulate_grad_hooks", None))


def has_tensor_hooks(leaf: object) -> bool:
    """Return whether every pass calls hooks with the gradient of ``leaf``."""
    return bool(getattr(leaf, "_backward_hooks", None))


def _stays(retain_graph: bool | None, create_graph: bool) -> bool:
    """Return whether a backward pass with these options leaves its graph for another pass."""
    # Without a retain_graph, torch uses create_graph in its place.
    return create_graph if retain_graph is None else retain_graph


class _GradFunctions(TorchFunctionMode):
    """Replace the functions of torch that read or write gradients of leaves."""

    def __init__(self, gradients: LeafGradients) -> None:
        super().__init__()
        self.gradients = gradients

    def __torch_function__(
        self,
        func: Kernel,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Run the handler of ``func``, if it has one."""
        kwargs = kwargs or {}
        handler = _handler_of(func, self.gradients.entering)
        if handler is None or _is_of_functorch(args):
            if kwargs.get("requires_grad"):
                return _leaf_of(func, args, kwargs)
            return func(*args, **kwargs)
        if handler in _ITERATING:
            args = tuple(map(_as_tuple, args))
            kwargs = {name: _as_tuple(value) for name, value in kwargs.items()}
        # Torch turns a mode off inside its handler. Hooks and custom Functions need it on.
        with self:
            if all_handlers_enabled() and any(map(class_handles_functions, types)):
                # a class of the user's sees the function next, and may call it, which comes here
                return _by_class(func, types, args, kwargs)
            return unwatched(handler, self.gradients, *args, **kwargs)


def _by_class(func: Kernel, types: Sequence[type], args: Arguments, kwargs: Keywords) -> object:
    """Return what the first of the user's classes ``types`` that takes the call makes of it."""
    for kind in filter(class_handles_functions, types):
        result = kind.__torch_function__(func, types, args, kwargs)  # type: ignore[attr-defined]
        if result is not NotImplemented:
            return result
    raise TypeError(f"no __torch_function__ of {list(types)} takes a call of {func}")


def _handler_of(func: object, entering: bool) -> Callable[..., object] | None:
    """Return the function that a capture runs in place of ``func``, or None to run ``func``.

    ``entering``: a tensor from outside is becoming a value, and its attributes are torch's own.
    """
    if not entering:
        handler = _HANDLERS.get(func) or _HANDLERS.get(NATIVE.get(func))
        if handler is not None:
            return handler
    if type(func) is FunctionType and func.__module__ == "torch.autograd":
        return _OF_AUTOGRAD.get(func.__name__)
    return None


def _refuse_other_levels(edges: Sequence[Edge | None]) -> None:
    """Refuse a backward pass from values of a transform inside the program."""
    if any(edge is not None and not isinstance(edge[0].level, ProgramTape) for edge in edges):
        raise RuntimeError(
            "the program calls backward() on a value of a transform. "
            f"Return it, and differentiate outside.{here()}"
        )


def _as_tuple(value: object) -> object:
    """Return ``value``, or a tuple of its items if it is a generator or another iterable."""
    if isinstance(value, (torch.Tensor, list, tuple, dict, str)) or not isinstance(value, Iterable):
        return value
    return tuple(value)


def _is_of_functorch(args: Arguments) -> bool:
    """Return whether the first argument has tensors of a transform of torch.func.

    Torch itself has the gradients of these.
    """
    return any(map(is_functorch_wrapped, tensors_of(args[:1])))


def _leaf_of(func: Kernel, args: Arguments, kwargs: Mapping[str, object]) -> object:
    """Return a leaf of the program for a factory such as ``torch.zeros(…, requires_grad=True)``.

    Torch would set its own flag, on a value of the program.
    """
    constant = func(*args, **{**kwargs, "requires_grad": False})
    return mode_of_program().value(constant).requires_grad_()


def _backward_of(
    gradients: LeafGradients, tensor: object, gradient: object, **options: Any
) -> None:
    gradients.backward(tensor, gradient, **options)


def _gradients(_: LeafGradients, outputs: Any, inputs: Any, **options: Any) -> object:
    """Call ``torch.autograd.grad``, which names all its options."""
    return session.grad(outputs, inputs, **options)


def _data(gradients: LeafGradients, tensor: torch.Tensor) -> object:
    """Return ``tensor.data``, as the program sees it."""
    value = gradients.inside(tensor)
    if value is not tensor:
        return value.data
    with unseen_by_handlers():
        return _data_of.__get__(tensor)


_HANDLERS: dict[object, Callable[..., object]] = {
    torch.Tensor.backward: _backward_of,
    _plain_grad: LeafGradients.gradient,
    _grad.__set__: LeafGradients.assign,
    _grad.__delete__: lambda gradients, t: gradients.assign(t, None),
    other_name_of_grad.__get__: LeafGradients.gradient,
    other_name_of_grad.__set__: LeafGradients.assign,
    TensorBase.retain_grad: LeafGradients.retain,
    TensorBase.requires_grad_: LeafGradients.require,
    _requires_grad.__set__: LeafGradients.require,
    _data_of.__get__: _data,
    _data_of.__set__: lambda gradients, t, new: refuse_data(),
}
# of torch's engine
_OF_AUTOGRAD: dict[str, Callable[..., object]] = {
    "backward": LeafGradients.backward,
    "grad": _gradients,
}
# A generator among the arguments of these can be read once, so it becomes a tuple before.
_ITERATING = frozenset((_backward_of, *_OF_AUTOGRAD.values()))
