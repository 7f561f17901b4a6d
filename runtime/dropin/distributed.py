"""``DistributedDataParallel`` under the drop-in: torch's module with a reducer that hooks into the
runtime's backward pass.

torch's C++ reducer puts its hooks on nodes of torch's tape. This one puts a hook on each parameter.
At the end of a backward pass it averages the gradients over the processes, bucket by bucket and in
the order that all processes share. Communication does not overlap with the pass, and
``gradient_as_bucket_view`` saves no memory.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ..session.tensor import Tensor, unwrap, wrap
from ..tape.engine import queue_callback
from .patches import Patches

_UNUSED = (
    "DistributedDataParallel: the backward pass has finished, "
    "but these parameters got no gradient: {}. The processes would wait for one another. "
    "Use all parameters in every forward pass, or construct it with find_unused_parameters=True."
)


class GradBucket:
    """The argument of a communication hook, as ``torch.distributed.GradBucket``."""

    def __init__(
        self, index: int, last: bool, buffer: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> None:
        self._index, self._last, self._buffer, self._parameters = (
            index,
            last,
            buffer,
            list(parameters),
        )

    def index(self) -> int:
        """Return the number of the bucket."""
        return self._index

    def is_last(self) -> bool:
        """Return whether no bucket of this pass follows."""
        return self._last

    def buffer(self) -> torch.Tensor:
        """Return the gradients of all parameters in one vector."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the vector of gradients."""
        self._buffer = buffer

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters whose gradients are in the bucket."""
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        """Return a view of the vector for each parameter, of its shape."""
        parts = self._buffer.split([parameter.numel() for parameter in self._parameters])
        return [
            part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)
        ]


class Reducer:
    """The methods of ``torch.distributed.Reducer`` that ``DistributedDataParallel`` calls."""

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        bucket_indices: Sequence[Sequence[int]],
        per_bucket_size_limits: Sequence[int],
        process_group: dist.ProcessGroup,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = 0,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: Mapping[int, str] | None = None,
        *rest: object,
    ) -> None:
        self._params = list(params)
        self._buckets = list(map(list, bucket_indices))
        self._group = process_group
        self._sparse = list(expect_sparse_gradients) or [False] * len(self._params)
        self._lenient = find_unused_parameters
        self._names = param_to_name_mapping or {}
        self._hook: tuple[object, Callable[..., Any]] | None = None
        self._waiting = False  # a forward pass has asked for its backward pass to be reduced
        self._ready: set[int] = set()
        this = weakref.ref(self)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(_marker(this, index))
            for index, parameter in enumerate(self._params)
        ]

    def __getattr__(self, name: str) -> NoReturn:
        """Raise: torch's reducer has a method that is missing here."""
        # Python and libraries ask any object for special names, to see whether it has them
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"runtime.dropin: DistributedDataParallel needs its reducer's {name!r} for what "
            "it was asked (join, mixed precision or an optimizer inside the backward pass), "
            "which the drop-in does not offer. Leave that option out, or run on plain torch."
        )

    def _mark(self, index: int) -> None:
        """Note that a parameter has its gradient. The first one of a pass asks for the reduction
        at its end."""
        if self._waiting:
            if not self._ready:
                queue_callback(self._reduce)
            self._ready.add(index)

    def _reduce(self) -> None:
        """Replace every parameter's gradient by the mean over the processes. It runs at the end of
        a backward pass."""
        ready, self._ready, self._waiting = self._ready, set(), False
        # all processes must reduce the same buckets, or they would wait for one another for ever
        used = ready
        if self._lenient:
            used = self._used_somewhere(ready)
        elif len(ready) < len(self._params):
            missing = sorted(set(range(len(self._params))) - ready)
            names = [self._names.get(index, f"number {index}") for index in missing]
            raise RuntimeError(_UNUSED.format(", ".join(names)))
        with torch.no_grad():
            for number, bucket in enumerate(self._buckets):
                # rows of a sparse gradient differ, so it has no place in a message of fixed size
                if any(self._sparse[index] for index in bucket):
                    self._reduce_sparse(bucket)
                else:
                    self._reduce_bucket(number, bucket, used)

    def _used_somewhere(self, ready: set[int]) -> set[int]:
        """Return the parameters that have a gradient in one of the processes."""
        flags = torch.tensor([float(index in ready) for index in range(len(self._params))])
        mask = unwrap(flags).to(self._params[0].device)
        dist.all_reduce(mask, group=self._group)
        return {index for index, count in enumerate(mask.tolist()) if count}

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the gradient of ``parameter``, zeros if it has none in this process."""
        if parameter.grad is None:
            return unwrap(torch.zeros_like(parameter.detach()))
        return unwrap(parameter.grad)

    def _reduce_bucket(self, number: int, bucket: list[int], used: set[int]) -> None:
        """Replace the gradients of the parameters in ``bucket`` by their means.

        ``number``: of the bucket. ``used``: the parameters that have a gradient in some process.
        """
        # one message for the whole bucket
        params = [self._params[index] for index in bucket]
        flat = torch.cat([self._gradient(parameter).reshape(-1) for parameter in params])
        if self._hook is None:
            flat.mul_(1.0 / dist.get_world_size(self._group))
            dist.all_reduce(flat, group=self._group)
        else:
            state, hook = self._hook
            is_last = number == len(self._buckets) - 1
            result = hook(state, GradBucket(number, is_last, wrap(flat), params)).wait()
            if not isinstance(result, (list, tuple)):
                result = (result,)
            flat = unwrap(*result)
        # and back into the gradients, each at its place in the message
        parts = flat.split([parameter.numel() for parameter in params])
        for index, parameter, part in zip(bucket, params, parts, strict=True):
            if index not in used:
                continue  # no process has a gradient for it
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter.detach())
            # in place: the optimizer or the user may refer to the gradient
            unwrap(parameter.grad).copy_(part.view(parameter.shape))

    def _reduce_sparse(self, bucket: list[int]) -> None:
        """Replace the sparse gradients of the parameters in ``bucket`` by their means."""
        for index in bucket:
            parameter = self._params[index]
            # another process may have a gradient, and waits for this one
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter.detach()).to_sparse(1)
            # processes have different rows, so a sum has more of them than this gradient
            grad = (unwrap(parameter.grad) / dist.get_world_size(self._group)).coalesce()
            dist.all_reduce(grad, group=self._group)
            parameter.grad = wrap(grad)

    def prepare_for_forward(self) -> None:
        """Forget what a pass that was not finished has marked."""
        self._ready = set()

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Reduce the next backward pass. Under ``no_sync()`` the module does not call this."""
        self._waiting = True

    def set_communication(self, state: object, hook: Callable[..., Any]) -> None:
        """Let ``hook(state, bucket)`` average the buckets, in place of ``all_reduce``."""
        if self._hook is not None:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        self._hook = state, hook

    def set_logger(self, logger: Logger) -> None:
        """Do nothing: there are no statistics."""

    def _rebuild_buckets(self) -> None:
        """Do nothing: buckets stay as they are."""

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        """Do nothing: there are no statistics."""

    def _set_static_graph(self) -> None:
        self._lenient = True

    def _delay_all_reduce(self) -> None:
        """Do nothing: the first pass of a static graph is reduced at its end, as all others are."""

    def _install_post_backward_futures(
        self, futures: Iterable[torch.futures.Future[object]]
    ) -> None:
        for future in futures:
            future.wait()

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _check_reducer_finalized(self) -> None:
        if self._ready:
            raise RuntimeError(
                "Expected to have finished reduction in the prior iteration "
                "before starting a new one."
            )

    def _reset_state(self) -> None:
        self._ready, self._waiting = set(), False

    def _update_process_group(self, group: dist.ProcessGroup) -> None:
        self._group = group


def _marker(reducer: weakref.ref[Reducer], index: int) -> object:
    """Return the hook of a parameter. It does not keep the reducer alive."""

    def mark(_: Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive._mark(index)

    return mark


class Logger:
    """``torch.distributed.Logger`` without statistics, because torch's are those of
    its own reducer."""

    def __init__(self, reducer: Reducer) -> None:
        pass

    def _nothing(self, *args: object) -> None:
        pass

    set_construction_data_and_log = set_runtime_stats_and_log = set_error_and_log = _nothing
    _set_static_graph = _set_comm_hook_name = _nothing

    def _get_ddp_logging_data(self) -> object:
        raise NotImplementedError("runtime.dropin: its DistributedDataParallel keeps no statistics")


def _register_builtin(reducer: Reducer, kind: Any) -> None:
    """Accept the built-in hook that the reducer does anyway. Raise for any other."""
    if kind.name != "ALLREDUCE":
        raise NotImplementedError(
            f"runtime.dropin: the built-in communication hook {kind} is not offered. Use the hook "
            "of the same name in torch.distributed.algorithms.ddp_comm_hooks.default_hooks."
        )


# Wrappers that split parameters, or graphs over several processes: module, class, the name
# that users know.
_REFUSED = (
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "FullyShardedDataParallel",
        "FullyShardedDataParallel",
    ),
    ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", "fully_shard"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase", "PipelineStage"),
)


def _refuse(name: str) -> object:
    """Return a constructor that raises, for the wrapper that users know as ``name``."""

    def __init__(self: object, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"runtime.dropin: {name} works on nodes of torch's own tape and cannot run on "
            "the runtime's engine. Use DistributedDataParallel, or run the program on plain torch."
        )

    return __init__


class _WhenImported(MetaPathFinder):
    """Make the wrappers of a module raise, from its import on. To import all such modules here
    would take seconds."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the usual spec of such a module, whose execution ends with our refusals."""
        if not any(name == module for module, _, _ in _REFUSED):
            return None
        # the usual finder, not this one again
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _refuse_in(self._patches, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def close(self) -> None:
        """Let later imports have their own wrappers."""
        sys.meta_path.remove(self)


def _refuse_in(patches: Patches, module: ModuleType) -> None:
    """Make the wrappers of an imported module raise."""
    for owner, cls, name in _REFUSED:
        if owner == module.__name__:
            patches.set(getattr(module, cls), "__init__", _refuse(name))


def patch_distributed(patches: Patches) -> None:
    """Replace what ``DistributedDataParallel`` uses of ``torch.distributed``, until ``patches`` are
    undone."""
    if not dist.is_available():
        return
    patches.set(dist, "Reducer", Reducer)
    patches.set(dist, "Logger", Logger)
    patches.set(
        dist,
        "_register_comm_hook",
        lambda reducer, state, hook: reducer.set_communication(state, hook),
    )
    patches.set(dist, "_register_builtin_comm_hook", _register_builtin)
    # wrappers that the reducer cannot serve: those of later imports, and those of earlier ones
    finder = _WhenImported(patches)
    sys.meta_path.insert(0, finder)
    patches.enter(contextlib.closing(finder))
    for owner, _, _ in _REFUSED:
        if owner in sys.modules:
            _refuse_in(patches, sys.modules[owner])
