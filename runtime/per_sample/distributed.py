"""Refuse modules and parameters that are spread over processes, except those that ``per_sample``
can follow.

``DistributedDataParallel`` is accepted: each process has whole parameters and its own samples. Its
gradients are not averaged, since ``.grad`` stays as it is.
"""

from __future__ import annotations

import sys

import torch

from ..torch_private.native_tensors import FLAT_PARAMETERS


def refuse_part(name: str, leaf: torch.Tensor) -> None:
    """Refuse a parameter of which each process holds a part.

    ``name``: the parameter, for the message. The modules of torch that make such parameters are
    looked up in ``sys.modules``, since a program without such parameters need not import them.
    """
    tensors = sys.modules.get("torch.distributed.tensor")
    flat = sys.modules.get(FLAT_PARAMETERS)
    if tensors is not None and isinstance(leaf, tensors.DTensor):
        kind = "a DTensor"
    elif flat is not None and isinstance(leaf, flat.FlatParameter):
        kind = "a flat parameter of FullyShardedDataParallel"
    else:
        return
    raise RuntimeError(
        f"per_sample: {name} is {kind}, which may be spread over the processes, "
        f"as FSDP spreads parameters. {_INSTEAD}"
    )


def refuse_wrapper(module: torch.nn.Module) -> None:
    """Refuse a module that does more around its forward pass than the context follows."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(module, (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)):
        raise RuntimeError(
            f"per_sample: {type(module).__name__} spreads its parameters over "
            f"the processes (FSDP). {_INSTEAD}"
        )
    if isinstance(module, torch.nn.parallel.DistributedDataParallel) and module.static_graph:
        raise RuntimeError(
            "per_sample: DistributedDataParallel with static_graph=True expects "
            "a backward pass of its own. Call the module in it, ddp.module(x), "
            "and sum what you need of the samples over the processes, such as clipped_sum()."
        )


_INSTEAD = (
    "Use whole parameters in each process, as DistributedDataParallel has them, "
    "and sum what you need of the samples over the processes, such as clipped_sum()."
)
