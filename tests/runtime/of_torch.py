"""What the installed torch does, where that decides what a test expects of the runtime.

The answers are those that the runtime goes by: see docs/torch_versions.md."""

from __future__ import annotations

from runtime.facts.lock import probe

# checkpoint(use_reentrant=False) without a function is a decorator
CHECKPOINT_DECORATES = {"TypeError": False, "1.0": True}[probe("checkpoint", "without a function")]

# checkpoint has the option respect_saved_tensors_hooks
HOOKS_ARE_AN_OPTION = {
    "TypeError": False,
    "True 2, False 1, None 1 and a FutureWarning": True,
}[probe("checkpoint", "hooks that see what a policy saves")]

# the op that writes a number to where a mask is true
WRITE_BY_MASK = {"IndexPutBackward0": "index_put_", "MaskedFillBackward0": "masked_fill_"}[
    probe("written", "a number by a mask").partition(" ")[0]
]

# the last op of a linear layer with a bias, on a stack of matrices
END_OF_A_LINEAR_LAYER = {
    "ViewBackward0": "aten.view.default",
    "UnsafeViewBackward0": "aten._unsafe_view.default",
}[probe("linear.stack with bias", "memory and node").rpartition(" ")[2]]

# a tensor that is no leaf tells the dtype of its gradients
RESULTS_HAVE_A_GRAD_DTYPE = probe("refused", "grad_dtype of a result") == "runs"

# torch runs a second pass over what a policy has saved, and gives a wrong gradient
SECOND_PASS_RUNS = probe("refused", "a second pass over what a policy saved") == "runs"
