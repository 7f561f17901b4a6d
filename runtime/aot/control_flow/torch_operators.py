"""Let torch's operators of higher order work on values of any level: in a trace as a call of the
operator itself, under a transform by its rule.

Torch finds the implementation of such an operator in tables of the operator, by the class of a
tensor, by the class of a dispatch mode or by a dispatch key. The entries of this module lead to our
functions only for our classes of values and modes:

- Entries by class are new. A class of values that comes later, such as one of a third party's
  level, gets its entries when it is defined.
- The entry of the key ``Autograd`` is torch's for every tensor that has torch's history. It
  is replaced by one that asks first whether an argument or the innermost mode is ours, and
  else calls torch's.
- The key of torch's old vmap is passed over, for which no operator has an implementation. It is on
  while our vmap refuses draws.

So a call without anything of ours does what torch does. The entries last as long as the process. To
declare an operator twice replaces the first declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import fx

from ...func.draws import DrawPerElement
from ...functionalize.functional_level import FunctionalLevel
from ...seam.dispatch import innermost
from ...seam.level_mode import LevelMode
from ...seam.levels import Value, levels_of
from ...seam.shells import ON_NEW_VALUES, VALUES
from ...torch_private.dispatcher import (
    DispatchKey,
    DispatchKeySet,
    HigherOrderOperator,
    higher_order_utils,
    included_keys,
)
from ...torch_private.functorch_state import enter_vmap_mode, leave_vmap_mode
from ...torch_private.mode_stacks import current_dispatch_mode, without_modes
from ...torch_private.pytrees import pytree
from ...trace.graph_module import GraphModule
from ...trace.pre_dispatch import PreDispatchMode
from ...trace.provenance import here
from ...trace.regions import running_traces
from ...trace.trace_level import Trace
from ..python_state.closed_over import ClosedOver
from .branches import Branch, Entering, example

Tensors = tuple[torch.Tensor, ...]
Entry = TypeVar("Entry", bound=Callable[..., object])
OURS: dict[object, Callable[..., object]] = {}
"""The function of this package for each operator of torch."""
_ENTERED: dict[HigherOrderOperator, Callable[..., object]] = {}
"""What each operator calls for our values, those included that refuse."""


def _key_of_batches() -> DispatchKeySet:
    """Return the set of the key by which torch refuses draws under vmap. It has no name in
    Python."""
    before = included_keys()
    enter_vmap_mode()
    try:
        return included_keys() - before
    finally:
        leave_vmap_mode()


_VMAP_MODE = _key_of_batches()
_MODES = (LevelMode, PreDispatchMode, DrawPerElement, ClosedOver, Entering)


def stands_for(operator: HigherOrderOperator) -> Callable[[Entry], Entry]:
    """Declare the function that torch's ``operator`` calls on values of this package, and inside of
    its levels."""

    def declare(function: Entry) -> Entry:
        """Enter ``function`` in the tables of the operator."""
        OURS[operator] = function
        _enter(operator, function)
        return function

    return declare


def refuse(operator: HigherOrderOperator, advice: str) -> None:
    """Declare that ``operator`` is refused on values of this package and inside of its levels.

    ``advice``: what to do instead.
    """

    def refused(*args: object, **kwargs: object) -> NoReturn:
        """Raise ``NotImplementedError``."""
        name = f"torch.ops.higher_order.{operator.name()}"
        raise NotImplementedError(
            f"{name} is no part of what this package differentiates, "
            f"batches or captures. {advice}{here()}"
        )

    _enter(operator, refused)


def _enter(operator: HigherOrderOperator, function: Callable[..., object]) -> None:
    """Let ``operator`` call ``function`` for our values and modes."""

    def inside(mode: ClosedOver | PreDispatchMode, *args: object, **kwargs: object) -> object:
        """Call ``function`` with ``mode`` on: the dispatcher has popped it."""
        with mode:
            return function(*args, **kwargs)

    table = operator.python_key_table
    table.update(dict.fromkeys((kind for kind in VALUES if issubclass(kind, Value)), function))
    table.update(dict.fromkeys(_MODES, inside))
    _ENTERED[operator] = function
    theirs = operator.py_kernels.get(DispatchKey.Autograd)
    if theirs is not None:
        # a second declaration must not call the entry of the first one
        theirs = getattr(theirs, "theirs", theirs)

        def differentiated(*args: object, **kwargs: object) -> object:
            """Call ``function`` for values, which have their own tape, and else torch's rule."""
            mode = current_dispatch_mode()
            of_ours = isinstance(mode, _MODES) or any(
                isinstance(leaf, Value) for leaf in pytree.tree_leaves((args, kwargs))
            )
            if of_ours:
                return function(*args, **kwargs)
            return theirs(*args, **kwargs)

        differentiated.theirs = theirs  # type: ignore[attr-defined]
        operator.py_kernels[DispatchKey.Autograd] = differentiated
    # no operator has an implementation for this key, see the top
    operator.non_fallthrough_keys = operator.non_fallthrough_keys - _VMAP_MODE
    # torch keeps what it has looked up in the tables before
    operator._dispatch_cache.clear()


def _enter_class(values: type) -> None:
    """Enter a class of values that is defined after the operators were declared."""
    for operator, function in _ENTERED.items():
        operator.python_key_table[values] = function
        operator._dispatch_cache.clear()


ON_NEW_VALUES.append(_enter_class)


_compile_and_call: Any = higher_order_utils._hop_compile_and_call


def _call_operator(
    fn: Callable[..., object], args: Sequence[object], kwargs: dict[str, object] | None = None
) -> object:
    """Do what ``torch.cond`` and its like do with ``fn``, which calls their operator.

    Torch compiles ``fn``. Its compiler does not know values of this package or a running capture.
    With these ``fn`` is called instead, as the operator knows them.
    """
    of_ours = running_traces() or any(
        isinstance(leaf, Value) for leaf in pytree.tree_leaves((args, kwargs))
    )
    if of_ours:
        return fn(*args, **(kwargs or {}))
    return _compile_and_call(fn, args, kwargs)


higher_order_utils._hop_compile_and_call = _call_operator


def transformable(module: fx.GraphModule) -> fx.GraphModule:
    """Return ``module`` with a function of this package for each call of an operator of torch.

    The operators themselves know no levels of this package.
    """
    if not any(node.target in OURS for node in module.graph.nodes):
        return module
    # a copy: the module itself stands in graphs, which have torch's operators
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        node.target = OURS.get(node.target, node.target)
    return GraphModule(module, graph)


def run(branch: Branch, args: Sequence[object]) -> Tensors:
    """Call a branch, in which operators of torch work at all levels."""
    results: Tensors = transformable(branch.module)(*args)
    return results


def unreadable(tensor: object) -> bool:
    """Return whether the element of ``tensor`` is traced or differs within a batch.

    Python cannot decide by such an element. False for an object that is no tensor.
    """
    return any(isinstance(level, Trace) or level.hidden for level in levels_of(tensor))


def through_levels(
    tensors: Sequence[torch.Tensor],
    again: Callable[[Sequence[torch.Tensor]], Tensors],
    record: Callable[[Trace], Tensors],
    compute: Callable[[], Tensors],
) -> Tensors:
    """Return the results of an operator on ``tensors``.

    At a functionalize level these are those of ``again`` on the inner tensors. In a trace
    ``record`` writes a call to the graph. Else ``compute`` computes them.
    """
    level = innermost(tensors, None)
    if isinstance(level, FunctionalLevel):
        # else the level would see the calls that bring its values up to date
        with without_modes():
            results = again(level.lowered_args(tensors))
        return tuple(map(level.wrap, results))
    return record(level) if isinstance(level, Trace) else compute()


def abstract_results(trace: Trace, branch: Branch, operands: Sequence[object]) -> Tensors:
    """Return abstract results of ``branch`` for ``operands``, in the mode of ``trace``."""
    assert trace.abstraction is not None
    if branch.spec is not None:
        return tuple(example(node.meta["val"], trace.abstraction.mode) for node in branch.results())
    # the values noted in a graph from elsewhere are of another mode, so the graph runs
    with trace.abstraction.running():
        return tuple(branch.module(*trace.lowered_args(operands)))
