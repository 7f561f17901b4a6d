"""Run unmodified torch programs on this package.

While the drop-in is installed, torch's factories return runtime tensors. The names of torch's
API for derivatives (``torch.autograd``, ``torch.func``, ``functorch``, ``Tensor.backward``,
``torch.utils.checkpoint``, …) lead to this package. :func:`uninstall` restores each of
torch's objects.

    with runtime.dropin.installed():     # within a program
        train()
    pytest -p runtime.dropin PATH        # a test suite
    python -m runtime script.py ARGS     # a script; `python -m runtime -m module ARGS` a module

Make tensors and modules after :func:`install`. A tensor from before it stays plain until the
program sets ``requires_grad``. Then it becomes a runtime tensor in place.

``routes`` says which name of torch leads where, ``patches`` replaces and restores, ``classes`` and
``tensor_factories`` change torch's classes and factories, ``compiling`` and ``capturing`` serve
``torch.compile`` and torch's exporters. The package imports everything below, and it alone may name
torch's own transforms. Start with ``routes.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..func.batch import current_fallback_policy, fallback_policy
from .patches import Patches, Unbound

__all__ = ["install", "installed", "is_installed", "replaced", "uninstall"]

_patches: Patches | None = None
# what one installation has learned of modules for the next one, for each of its two lists
_UNBOUND = (Unbound(), Unbound())


def is_installed() -> bool:
    """Return whether torch's API leads to this package now."""
    return _patches is not None


def replaced() -> list[Any]:
    """Return the objects of torch that are replaced now, without repetition."""
    if _patches is None:
        return []
    return list({id(old): old for old, _ in _patches.replaced()}.values())


def install(*, compile: str = "dynamo") -> None:
    """Route torch's API to this package, for the whole process. ``RuntimeError`` if it is
    installed already.

    ``compile``: what ``torch.compile`` captures programs with, ``"dynamo"`` or ``"jit"``;
    ``ValueError`` for another word. The modules are imported here, so that
    `import runtime` stays quick.
    """
    global _patches
    if compile not in ("dynamo", "jit"):
        raise ValueError(
            f"compile={compile!r}; torch.compile captures programs with 'dynamo' or 'jit'"
        )
    if _patches is not None:
        raise RuntimeError(
            "the drop-in is installed already; leave it with runtime.dropin.uninstall() first"
        )
    from .capturing import captures
    from .classes import patch_classes
    from .compiling import compiler, patch_fake_tensors
    from .distributed import patch_distributed
    from .modules import patch_modules
    from .routes import replacements, switches
    from .scripting import patch_scripts
    from .tensor_factories import forget_tables, wrapped_factories

    # `patches` are suspended during a capture of torch's, and `lasting` are not
    patches, lasting = Patches(_UNBOUND[0]), Patches(_UNBOUND[1])
    forget_tables()
    try:
        patch_fake_tensors(patches, lasting)
        compilers = captures(patches, lasting) | compiler(patches, compile == "jit")
        lasting.replace_everywhere(compilers)
        made = {id(ours) for _, ours in compilers.values()}
        patches.replace_everywhere(replacements() | wrapped_factories(), made)
        for owner, name, value in switches():
            patches.set(owner, name, value)
        patch_classes(patches)
        patch_modules(patches)
        patch_distributed(patches)
        patch_scripts(patches)  # after the others: it reads what they have replaced
        # a program may set it by torch's function
        patches.enter(fallback_policy(current_fallback_policy()))
        patches.callback(lasting.undo)
    except BaseException:
        patches.undo()
        lasting.undo()
        raise
    _patches = patches


def uninstall() -> None:
    """Restore torch's own API. ``RuntimeError`` if the drop-in is not installed."""
    global _patches
    if _patches is None:
        raise RuntimeError("the drop-in is not installed")
    patches, _patches = _patches, None
    from .tensor_factories import forget_tables

    patches.undo()
    forget_tables()


@contextlib.contextmanager
def installed(*, compile: str = "dynamo") -> Iterator[None]:
    """Install the drop-in for a ``with`` block, see :func:`install`. Torch is restored at its end,
    also after an exception."""
    install(compile=compile)
    try:
        yield
    finally:
        uninstall()


def pytest_load_initial_conftests(early_config: object) -> None:
    """Install the drop-in. ``pytest -p runtime.dropin`` calls this before the first conftest is
    imported, so names that it imports from torch are routed."""
    install()


def pytest_unconfigure(config: object) -> None:
    """Uninstall the drop-in, when pytest is done."""
    if is_installed():
        uninstall()
