"""``torch.jit.script`` under the drop-in: a scripted program means torch's operators by the names
that the drop-in has replaced.

TorchScript compiles the source of a program. It looks up each function that the source names in a
table of torch's, by identity: ``torch.zeros`` is the operator ``aten::zeros``. What is not in the
table, TorchScript compiles from source too. It cannot compile the source of a replacement.
"""

from __future__ import annotations

from ..torch_private.global_settings import operators_of_scripts
from .patches import Patches

# these run torch's engine, which knows nothing of the session's tapes; from the source of ours,
# TorchScript says that it cannot compile them
_OF_TORCHS_ENGINE = ("aten::grad", "aten::backward")
# torch builds the table when it is first asked for, from the functions that it finds then
_operators: dict[int, str] = operators_of_scripts()


def patch_scripts(patches: Patches) -> None:
    """Enter the replacements of ``patches`` into TorchScript's table, each as the operator of
    what it replaces."""
    # an operator of torch's engine would not know the tapes of the session
    added = {
        id(new): _operators[id(old)]
        for old, new in patches.replaced()
        if _operators.get(id(old), _OF_TORCHS_ENGINE[0]) not in _OF_TORCHS_ENGINE
    }
    _operators.update(added)

    def forget() -> None:
        """Remove the replacements again."""
        for number in added:
            del _operators[number]

    patches.callback(forget)
