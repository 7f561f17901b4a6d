"""Checkpoint by a policy, which decides for each op whether the second run computes it again or
uses the result of the first.

    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    y = checkpoint(f, x, use_reentrant=False, context_fn=contexts)

Each run of the function has a dispatch mode around it. The mode of the first run caches the results
that the policy saves. The mode of the second run hands them out in place of the same calls. A call
is known by its op and by how often the run has called this op before.
"""

from __future__ import annotations

import enum
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..facts.lock import probe
from ..seam.call_types import Arguments, Keywords
from ..seam.dispatch import innermost
from ..seam.levels import Value, bottom
from ..seam.user_code import watched
from ..tape.saved import Pack, Unpack
from ..torch_private.dispatcher import OpOverload, OpOverloadPacket
from ..torch_private.mode_stacks import TorchDispatchMode
from ..torch_private.pytrees import pytree
from .frame import hooks_of_the_user

_aten = torch.ops.aten
SAC_IGNORED_OPS: set[OpOverload] = {
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
    """Say what to do with the result of an op, as ``torch.utils.checkpoint.CheckpointPolicy``.

    ``MUST_`` and ``PREFER_`` differ only for compilers.
    """

    # the numbers of torch, which programs may have stored
    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_SAVED = {CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE}
OFFLOADED = {CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD}


class SelectiveCheckpointContext:
    """The first argument of a policy function, as that of ``torch.utils.checkpoint``.

    ``is_recompute``: False, since a policy is only called in the first run. ``op_output``: the
    result of the op.
    """

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


Policy = Callable[..., CheckpointPolicy | bool]
Hooks = tuple[Pack, Unpack]

# Whether the installed torch has respect_saved_tensors_hooks=. The probe counts the tensors that a
# pack hook sees with True, False and None.
_HAS_OPTION = {"TypeError": False, "True 2, False 1, None 1 and a FutureWarning": True}
HOOKS_ARE_AN_OPTION = _HAS_OPTION[probe("checkpoint", "hooks that see what a policy saves")]


class _CachedTensor:
    """One tensor of a cached result.

    ``tensor``: the result of the op. ``offload``: whether it waits in the memory of the CPU.
    ``hooks``: the user's pair of hooks that packs and unpacks it, None without.
    """

    def __init__(self, tensor: torch.Tensor, offload: bool, hooks: Hooks | None) -> None:
        self.device = tensor.device
        stored = tensor.cpu() if offload else tensor
        # the tensor, or what the pack hook returned for it, which may be anything
        self.payload: object = stored
        self.unpack: Unpack | None = None
        if hooks is not None:
            pack, self.unpack = hooks
            self.payload = watched(pack, stored.detach())
        self.version = self._version()

    def _version(self) -> int | None:
        """Return the version of what is stored; None if a hook has packed it to something else."""
        if not isinstance(self.payload, torch.Tensor):
            return None
        return self.payload._version

    def take(self, allow_mutation: bool) -> torch.Tensor:
        """Return the tensor on its original device, without history.

        ``RuntimeError`` if it was written to since it was cached, unless ``allow_mutation``.
        ``TypeError`` if the unpack hook returns no tensor.
        """
        if self._version() != self.version and not allow_mutation:
            raise RuntimeError(
                "Tensor cached during selective activation checkpoint has been mutated"
            )
        # the user's hooks may have packed it
        stored = self.payload
        if self.unpack is not None:
            stored = watched(self.unpack, stored)
        if not isinstance(stored, torch.Tensor):
            raise TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result "
                f"of type {type(stored).__name__}"
            )
        plain: torch.Tensor = bottom(stored)
        # back from the memory of the CPU, if it was offloaded
        return plain.detach().to(self.device)


CallKey = tuple[OpOverload, int]
"""An op, and the number of its call in a run, from 1."""


class _SharedResults:
    """The results that the first run hands to the second, by call: trees of _CachedTensor.

    ``is_used``: whether a second run has taken one. It may not start again then.
    """

    def __init__(self) -> None:
        self.cached: dict[CallKey, object] = {}
        self.is_used = False


class _RunMode(TorchDispatchMode):
    """The dispatch mode around one run of the function. It counts the calls of each op.

    It sees calls below the tape: those of kernels, which levels make. Their results have no
    history. A call whose arguments are values of a level goes to this level first, with the mode
    still on, so that the calls that the level makes arrive here.
    """

    def __init__(self, results: _SharedResults) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results = results
        self.calls: Counter[OpOverload] = Counter()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Run the call of an op below all levels; the levels come first."""
        kwargs = kwargs or {}
        if innermost(args, kwargs) is not None:
            with self:
                return Value.__torch_dispatch__(func, types, args, kwargs)
        # such calls are not counted, as the two runs make different numbers of them
        if func in SAC_IGNORED_OPS:
            return func(*args, **kwargs)
        self.calls[func] += 1
        return self.run_kernel(func, (func, self.calls[func]), args, kwargs)

    def run_kernel(
        self, func: OpOverload, call: CallKey, args: Arguments, kwargs: Keywords
    ) -> object:
        """Return the result of ``func(*args, **kwargs)``, computed or cached."""
        raise NotImplementedError


def runs_again(func: OpOverload) -> bool:
    """Return whether the second run always calls an op, whatever the policy says.

    That is so for writes, which must happen in both runs, and for views, which cost nothing.
    """
    schema = func._schema
    return schema.is_mutable or any(result.alias_info is not None for result in schema.returns)


class _FirstRun(_RunMode):
    """Cache the results that ``policy`` saves.

    ``respect_saved_tensors_hooks``: the option of the checkpoint around this run. Whether the
    user's hooks for saved tensors pack what the policy saves. None if the user has not said.
    """

    respect_saved_tensors_hooks: bool | None = None

    def __init__(self, results: _SharedResults, policy: Policy) -> None:
        super().__init__(results)
        self.policy = policy

    def _hooks(self) -> Hooks | None:
        """Return the user's hooks if they are to pack what the policy saves."""
        if not HOOKS_ARE_AN_OPTION:
            return None
        hooks = hooks_of_the_user()
        if hooks is None or self.respect_saved_tensors_hooks:
            return hooks
        # without a choice the behaviour of torch changes one day, so it warns
        if self.respect_saved_tensors_hooks is None:
            warnings.warn(
                "Hooks for saved tensors are around a checkpoint with a policy. They do not see "
                "what the policy saves, and a later torch will let them. Say which by "
                "respect_saved_tensors_hooks=True or False.",
                FutureWarning,
                stacklevel=2,
            )
        return None

    def run_kernel(
        self, func: OpOverload, call: CallKey, args: Arguments, kwargs: Keywords
    ) -> object:
        """Run the call, and cache its result if the policy says so."""
        out = func(*args, **kwargs)
        context = SelectiveCheckpointContext(is_recompute=False, op_output=out)
        decision = self.policy(context, func, *args, **kwargs)
        # a policy may return a Boolean, too
        offload = decision in OFFLOADED
        saves = decision is True or decision in _SAVED or offload
        if saves and not runs_again(func):
            hooks = self._hooks()
            self.results.cached[call] = pytree.tree_map_only(
                torch.Tensor, lambda tensor: _CachedTensor(tensor, offload, hooks), out
            )
        return out


def policy_of_context(context: object) -> Policy | None:
    """Return the policy if ``context`` is the first context of
    :func:`create_selective_checkpoint_contexts`. None for any other context."""
    if not isinstance(context, _FirstRun):
        return None
    return context.policy


def respect_hooks(context: object, option: bool | None) -> None:
    """Set ``respect_saved_tensors_hooks`` of ``context`` if it is the first context of
    :func:`create_selective_checkpoint_contexts`. Any other context has no such option."""
    if isinstance(context, _FirstRun):
        context.respect_saved_tensors_hooks = option


class _SecondRun(_RunMode):
    """Return the cached results of the first run in place of the same calls.

    ``allow_mutation``: whether a cached result may have been written to. ``depth``: how many
    entries of the mode have not been left.
    """

    def __init__(self, results: _SharedResults, allow_mutation: bool) -> None:
        super().__init__(results)
        self.allow_mutation = allow_mutation
        self.depth = 0

    def __enter__(self) -> object:
        # The mode is also re-entered for the calls that a level makes. Only the first entry is a
        # new run of the function.
        if not self.depth:
            self.calls.clear()
            if self.results.is_used:
                raise RuntimeError(
                    "Trying to backward an extra time. The first backward pass has used and freed "
                    "the results that the selective checkpoint saved."
                )
        self.depth += 1
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1
        super().__exit__(*exc)  # type: ignore[no-untyped-call]

    def run_kernel(
        self, func: OpOverload, call: CallKey, args: Arguments, kwargs: Keywords
    ) -> object:
        """Return the cached result of the call, or run it if the first run has cached none."""
        cached = self.results.cached
        if call not in cached:
            return func(*args, **kwargs)
        self.results.is_used = True
        # the result is dropped from the cache, so that its memory is freed after its last use
        out = cached.pop(call)
        return pytree.tree_map_only(
            _CachedTensor, lambda entry: entry.take(self.allow_mutation), out
        )


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | Sequence[object], allow_cache_entry_mutation: bool = False
) -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """Return the contexts of the two runs, which ``checkpoint`` gets from its ``context_fn``, as
    ``torch.utils.checkpoint.create_selective_checkpoint_contexts``.

    ``policy_fn_or_list``: ``policy(context, op, *args, **kwargs) -> CheckpointPolicy``, called in
    the first run after each op, or a list of the overloads to save. ``context`` is a
    :class:`SelectiveCheckpointContext`. A policy may return True to save, False to compute again.

    If a saved result was written to, the second run raises ``RuntimeError``, unless
    ``allow_cache_entry_mutation``. ``ValueError`` if the list has something that is no overload,
    ``TypeError`` for anything but a function or a list.
    """
    policy: Policy
    if isinstance(policy_fn_or_list, list):
        policy = _policy_that_saves(policy_fn_or_list)
    elif callable(policy_fn_or_list):
        policy = policy_fn_or_list
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    results = _SharedResults()
    return _FirstRun(results, policy), _SecondRun(results, allow_cache_entry_mutation)


def _policy_that_saves(ops: Sequence[object]) -> Policy:
    """Return the policy that saves the results of ``ops`` and of no other op. ``ValueError`` if one
    of them is no overload."""
    for op in ops:
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
    saved = frozenset(ops)

    def policy(_: object, op: OpOverload, *args: object, **kwargs: object) -> CheckpointPolicy:
        """Save the results of these ops."""
        if op in saved:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy
