"""Declare torch's operators that call a function once: each does what the function does, or is
refused by name.

    invoke_quant(module, x, scheme="nf4")    # in a graph: the calls of module(x)

Torch's graphs have such a call for a compiler. A graph of this package has the calls of the
function in its place: the numbers are the same, and the hints for a compiler are lost.
``torch.compile`` hands graphs that have such a call to torch's AOTAutograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...torch_private.dispatcher import DispatchKey, HigherOrderOperator, higher_order_operators
from ...torch_private.pytrees import pytree
from ...trace.provenance import here
from ...trace.regions import traced
from .torch_operators import OURS, refuse, stands_for

_HIGHER = torch.ops.higher_order


@stands_for(_HIGHER.invoke_quant)
@stands_for(_HIGHER.invoke_quant_packed)
@stands_for(_HIGHER.foreach_map)
def _call(function: Callable[..., object], *operands: object, **_: object) -> object:
    """Call ``function``, and drop the options for a compiler."""
    return function(*operands)


@stands_for(_HIGHER.invoke_subgraph)
def _call_by_name(function: Callable[..., object], identifier: str, *operands: object) -> object:
    """Call ``function``, whose ``identifier`` is that of equal calls in torch's graph."""
    return function(*operands)


@stands_for(_HIGHER.strict_mode)
@stands_for(_HIGHER.run_const_graph)
def _call_on(function: Callable[..., object], operands: Sequence[object]) -> object:
    """Call ``function`` with the operands in a list."""
    return function(*operands)


@stands_for(_HIGHER.hints_wrapper)
def _call_with_hints(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: dict[str, object],
    hints: object = None,
) -> object:
    """Call ``function``, and drop the ``hints`` for a compiler."""
    return function(*args, **kwargs)


@stands_for(_HIGHER._export_tracepoint)
def _pass_on(*args: object, **_: object) -> object:
    """Return the operands: the operator only marks where torch's export looks at them."""
    return args


def _use_parts(operator: HigherOrderOperator) -> None:
    """Let ``operator`` be the calls of which torch's kernel consists."""
    # the kernel is Python code that calls ops, and each of these calls has a rule
    stands_for(operator)(operator.py_kernels[DispatchKey.CompositeExplicitAutograd])


for _operator in (
    _HIGHER.auto_functionalized,
    _HIGHER.auto_functionalized_v2,
    _HIGHER.with_effects,
):
    _use_parts(_operator)


@stands_for(_HIGHER.print)
def _print(text: str, *args: object, **kwargs: object) -> None:
    """Print ``text``. ``NotImplementedError`` in a trace."""
    leaves = pytree.tree_leaves((args, kwargs))
    if traced(leaves):
        raise NotImplementedError(
            "torch.ops.higher_order.print in a program that is traced would print once, "
            f"and no numbers. Return what is to be printed.{here()}"
        )
    print(text.format(*args, **kwargs))


_CUSTOM_OP = "Make a custom op of what it calls: torch.library.custom_op."
_PART_OF_A_GRAPH = (
    "It stands in graphs that torch makes. Use the program of which the graph was made."
)
_COMPILED = "It runs code that was compiled before. Call it outside of the function."
_ADVICE = {
    "flex_attention": (
        "Use scaled_dot_product_attention with attn_mask, "
        "or write out the scores, softmax and matmul."
    ),
    "call_torchbind": "Call the method outside of the function, and pass its results in.",
    "inline_asm_elementwise": _CUSTOM_OP,
    "invoke_leaf_function": _CUSTOM_OP,
    "triton_kernel_wrapper_functional": _CUSTOM_OP,
    "triton_kernel_wrapper_mutation": _CUSTOM_OP,
    "local_map_hop": "Call the function itself with local tensors.",
    "executorch_call_delegate": _COMPILED,
    "aoti_call_delegate": _COMPILED,
    "inductor_compiled_code": _COMPILED,
    "while_loop_stack_output": "Use runtime.aot.scan, which returns a result of each step.",
    "associative_scan": "Use runtime.aot.associative_scan.",
}

# The loops and scans are imported later: their declarations replace the refusals of this loop.
for _name, _operator in higher_order_operators.items():
    if _operator not in OURS:
        refuse(_operator, _ADVICE.get(_name, _PART_OF_A_GRAPH))
