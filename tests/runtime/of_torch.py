"""What the installed torch does, where that decides what a test expects of the runtime.

Torch itself is asked, so that no test goes by what the runtime takes for true of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

# its stubs know neither the decorator nor the options of a selective policy
_CHECKPOINT: Any = checkpoint


def _runs(program: Callable[[], object], refusal: type[Exception] = RuntimeError) -> bool:
    """Return whether a program runs, and does not raise ``refusal``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program()
    except refusal:
        return False
    return True


def _leaf(*shape: int) -> Tensor:
    return torch.ones(shape, requires_grad=True)


def _node_of(result: Tensor) -> str:
    assert result.grad_fn is not None
    return result.grad_fn.name()


def _written_by_a_mask() -> Tensor:
    x = _leaf(2) * 2
    x[x > 0] = 2.0
    return x


def _save_by_a_policy(**options: Any) -> Tensor:
    saving = partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    run = partial(_CHECKPOINT, use_reentrant=False, context_fn=saving, **options)
    result: Tensor = run(lambda x: x.sin().exp().sin(), _leaf(1))
    return result


def _pass_twice() -> None:
    result = _save_by_a_policy()
    result.backward(retain_graph=True)
    result.backward()


# checkpoint(use_reentrant=False) without a function is a decorator
CHECKPOINT_DECORATES = _runs(partial(_CHECKPOINT, use_reentrant=False), TypeError)

# checkpoint has the option respect_saved_tensors_hooks
HOOKS_ARE_AN_OPTION = _runs(partial(_save_by_a_policy, respect_saved_tensors_hooks=True), TypeError)

# the op that writes a number to where a mask is true
WRITE_BY_MASK = {"IndexPutBackward0": "index_put_", "MaskedFillBackward0": "masked_fill_"}[
    _node_of(_written_by_a_mask())
]

# the last op of a linear layer with a bias, on a stack of matrices
END_OF_A_LINEAR_LAYER = {
    "ViewBackward0": "aten.view.default",
    "UnsafeViewBackward0": "aten._unsafe_view.default",
}[_node_of(linear(_leaf(2, 2, 3), torch.ones(2, 3), torch.ones(2)))]

# a tensor that is no leaf tells the dtype of its gradients
RESULTS_HAVE_A_GRAD_DTYPE = _runs(lambda: (_leaf(1) * 2).grad_dtype)

# torch runs a second pass over what a policy has saved, and gives a wrong gradient
SECOND_PASS_RUNS = _runs(_pass_twice)

# inputs of grad and of backward may be a dictionary
INPUTS_MAY_BE_A_DICTIONARY = _runs(lambda: torch.autograd.grad((x := _leaf()) * 2, {"x": x}))

# torch differentiates cholesky by a formula of its own, and not that of linalg.cholesky
CHOLESKY_HAS_A_FORMULA = hasattr(torch._C._functions, "CholeskyBackward0")
