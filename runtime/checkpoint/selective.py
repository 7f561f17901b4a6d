"""Selective checkpointing: a policy decides for each op whether the second run computes it again or
uses the result of the first."""

from __future__ import annotations

import enum
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..facts.lock import probe
from ..seam.levels import Value, bottom, innermost
from ..seam.user_code import watched
from ..tape.saved import Pack, Unpack
from ..torch_private.dispatcher import OpOverload, OpOverloadPacket
from ..torch_private.mode_stacks import TorchDispatchMode
from ..torch_private.pytrees import pytree
from .frame import hooks_of_the_user

_aten = torch.ops.aten
SAC_IGNORED_OPS: set[Any] = {
    _aten.detach.default,  # checkpointing itself detaches, and not equally often in both runs
    # these compute nothing: they return facts of a tensor, and some subclasses dispatch them
    torch.ops.prim.device.default,
    _aten.size.default,
    _aten.sym_size.default,
    _aten.stride.default,
    _aten.sym_stride.default,
    _aten.storage_offset.default,
    _aten.sym_storage_offset.default,
    _aten.numel.default,
    _aten.sym_numel.default,
    _aten.dim.default,
    _aten.is_contiguous.default,
    _aten.is_contiguous.memory_format,
    _aten.is_strides_like_format.default,
    _aten.is_non_overlapping_and_dense.default,
}


class CheckpointPolicy(enum.Enum):
    """As ``torch.utils.checkpoint.CheckpointPolicy``. ``MUST_`` and ``PREFER_`` differ
    only for compilers."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_SAVED = {CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE}
OFFLOADED = {CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD}


class SelectiveCheckpointContext:
    """The first argument of a policy function. ``op_output`` is the result of the op."""

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


Policy = Callable[..., CheckpointPolicy | bool]
Hooks = tuple[Pack, Unpack]

# Whether the installed torch lets hooks for saved tensors see what a policy saves, by which option.
_ANSWERS = {"TypeError": False, "True 2, False 1, None 1 and a FutureWarning": True}
HOOKS_ARE_AN_OPTION = _ANSWERS[probe("checkpoint", "hooks that see what a policy saves")]


class _Cached:
    """One tensor of a cached result, with its version and original device. ``hooks``: what packs
    and unpacks it."""

    def __init__(self, t: torch.Tensor, offload: bool, hooks: Hooks | None) -> None:
        self.device = t.device
        stored = t.cpu() if offload else t
        self.payload: Any = stored
        self.unpack: Unpack | None = None
        if hooks is not None:
            pack, self.unpack = hooks
            self.payload = watched(pack, stored.detach())
        self.version = self._version()

    def _version(self) -> int | None:
        if not isinstance(self.payload, torch.Tensor):
            return None
        return self.payload._version

    def take(self, allow_mutation: bool) -> torch.Tensor:
        if self._version() != self.version and not allow_mutation:
            raise RuntimeError(
                "Tensor cached during selective activation checkpoint has been mutated"
            )
        t = self.payload
        if self.unpack is not None:
            t = watched(self.unpack, t)
        if not isinstance(t, torch.Tensor):
            raise TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result "
                f"of type {type(t).__name__}"
            )
        plain: torch.Tensor = bottom(t)
        return plain.detach().to(self.device)


class _Results:
    """Results of the first run by (op, number of the call), and whether a second
    run has taken them."""

    def __init__(self) -> None:
        self.cached: dict[tuple[Any, int], Any] = {}
        self.taken = False


class _KernelMode(TorchDispatchMode):
    """Sees calls below the tape: those that levels make of kernels. Their results have no history.
    A call with values goes to its level first."""

    def __init__(self, results: _Results) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results = results
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if innermost(args, kwargs) is not None:
            with self:
                return Value.__torch_dispatch__(func, types, args, kwargs)
        if func in SAC_IGNORED_OPS:
            return func(*args, **kwargs)
        self.calls[func] += 1
        return self.kernel(func, (func, self.calls[func]), args, kwargs)

    def kernel(self, func: object, call: tuple[object, int], args: object, kwargs: object) -> Any:
        raise NotImplementedError


def runs_again(func: Any) -> bool:
    """Return whether an op always runs again, whatever the policy says: a write must be made, and a
    view costs nothing."""
    schema = func._schema
    return schema.is_mutable or any(r.alias_info is not None for r in schema.returns)


class _FirstRun(_KernelMode):
    """``respect_saved_tensors_hooks``: the option of that name of the checkpoint around it."""

    respect_saved_tensors_hooks: bool | None = None

    def __init__(self, results: _Results, policy: Policy) -> None:
        super().__init__(results)
        self.policy = policy

    def _hooks(self) -> Hooks | None:
        """Return what is to pack a result that the policy saves."""
        if not HOOKS_ARE_AN_OPTION:
            return None
        hooks = hooks_of_the_user()
        if hooks is None or self.respect_saved_tensors_hooks:
            return hooks
        if self.respect_saved_tensors_hooks is None:
            warnings.warn(
                "Hooks for saved tensors are around a checkpoint with a policy. They do not see "
                "what the policy saves, and a later torch will let them. Say which by "
                "respect_saved_tensors_hooks=True or False.",
                FutureWarning,
                stacklevel=2,
            )
        return None

    def kernel(self, func: Any, call: tuple[object, int], args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        wish = self.policy(
            SelectiveCheckpointContext(is_recompute=False, op_output=out), func, *args, **kwargs
        )
        offload = wish in OFFLOADED
        if (wish is True or wish in _SAVED or offload) and not runs_again(func):
            hooks = self._hooks()
            self.results.cached[call] = pytree.tree_map_only(
                torch.Tensor, lambda t: _Cached(t, offload, hooks), out
            )
        return out


def policy_of_context(context: object) -> Policy | None:
    """Return the policy, if ``context`` is the first one of
    :func:`create_selective_checkpoint_contexts`."""
    if not isinstance(context, _FirstRun):
        return None
    return context.policy


def respect_hooks(context: object, wish: bool | None) -> None:
    """Let ``context`` know the option ``respect_saved_tensors_hooks``, if it is the first one of
    :func:`create_selective_checkpoint_contexts`."""
    if isinstance(context, _FirstRun):
        context.respect_saved_tensors_hooks = wish


class _SecondRun(_KernelMode):
    def __init__(self, results: _Results, allow_mutation: bool) -> None:
        super().__init__(results)
        self.allow_mutation = allow_mutation
        self.entered = 0

    def __enter__(self) -> Any:
        # The mode is also re-entered for the calls that a level makes. Only the first entry is a
        # new run of the function.
        if not self.entered:
            self.calls.clear()
            if self.results.taken:
                raise RuntimeError(
                    "Trying to backward an extra time. The first backward pass has used and freed "
                    "the results that the selective checkpoint saved."
                )
        self.entered += 1
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: object) -> None:
        self.entered -= 1
        super().__exit__(*exc)  # type: ignore[no-untyped-call]

    def kernel(self, func: Any, call: tuple[object, int], args: Any, kwargs: Any) -> Any:
        cached = self.results.cached
        if call not in cached:
            return func(*args, **kwargs)
        self.results.taken = True
        return pytree.tree_map_only(
            _Cached, lambda t: t.take(self.allow_mutation), cached.pop(call)
        )


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | Sequence[object], allow_cache_entry_mutation: bool = False
) -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """As ``torch.utils.checkpoint.create_selective_checkpoint_contexts``: the two contexts for
    a ``context_fn``.

    ``policy_fn_or_list``: ``policy(context, op, *args, **kwargs) -> CheckpointPolicy``, called in
    the first run after each op, or a list of the overloads to save. If a saved result was written
    to, the second run raises ``RuntimeError``, unless ``allow_cache_entry_mutation``.
    """
    policy: Policy
    if isinstance(policy_fn_or_list, list):
        for op in policy_fn_or_list:
            if not isinstance(op, OpOverload):
                advice = ""
                if isinstance(op, OpOverloadPacket):
                    advice = (
                        "Please update the OpOverloadPacket to a specific OpOverload: "
                        "torch.ops.aten.mm.default, not torch.ops.aten.mm."
                    )
                raise ValueError(
                    "Expected op in `op_list` to be an OpOverload but got: "
                    f"{op} of type {type(op)}. {advice}"
                )
        ops = frozenset(policy_fn_or_list)

        def listed(_: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
            if op in ops:
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        policy = listed
    elif callable(policy_fn_or_list):
        policy = policy_fn_or_list
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    results = _Results()
    return _FirstRun(results, policy), _SecondRun(results, allow_cache_entry_mutation)
