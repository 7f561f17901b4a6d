"""Clipped sums and all gradients of samples, in the context, beside other packages: torch's
ExpandedWeights, torch.func, a loop over the samples, and Opacus where it is installed
(extra ``opacus``)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cells import Cell
from benchmarks.per_sample import losses_of, programs
from runtime.per_sample import per_sample
from runtime.session.tensor import unwrap

Make = Callable[[], nn.Module]
Both = tuple[Callable[[], object], Callable[[], object]]
_MAX_NORM = 1.0


def _made(make: Make) -> Any:
    torch.manual_seed(0)
    return make()


def clipped(grads: Sequence[Tensor]) -> list[Tensor]:
    """The clipped sum of gradients that exist."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
    factors = _MAX_NORM / norms.clamp_min(_MAX_NORM)
    return [torch.tensordot(factors, g, 1) for g in grads]


def _ours(make: Make, x: Tensor, clip: bool) -> Callable[[], object]:
    module = _made(make)

    def run() -> list[Tensor]:
        with per_sample(module.parameters()) as grads:
            losses_of(module(x)).sum().backward()
        return [unwrap(g) for g in (grads.clipped_sum(_MAX_NORM) if clip else grads.materialize())]

    return run


def by_loop(make: Make, x: Tensor) -> Callable[[], list[Tensor]]:
    module = _made(make)
    params = list(module.parameters())

    def run() -> list[Tensor]:
        rows = [torch.autograd.grad(losses_of(module(row[None])).sum(), params) for row in x]
        return [torch.stack(g) for g in zip(*rows, strict=True)]

    return run


def by_torch_func(make: Make, x: Tensor) -> Callable[[], list[Tensor]]:
    module = _made(make)
    params = {name: p.detach() for name, p in module.named_parameters()}

    def loss(params: dict[str, Tensor], row: Tensor) -> Tensor:
        return losses_of(torch.func.functional_call(module, params, (row.unsqueeze(0),)))[0]

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    return lambda: list(each(params, x).values())


def by_expanded_weights(make: Make, x: Tensor) -> Callable[[], list[Tensor]]:
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    module = _made(make)

    def run() -> list[Tensor]:
        losses_of(call_for_per_sample_grads(module, loss_reduction="sum")(x)).sum().backward()
        return _taken(module)

    return run


def _taken(module: Any) -> list[Tensor]:
    """The gradients of the samples, which the parameters forget."""
    found: list[Tensor] = []
    for p in module.parameters():
        found.append(p.grad_sample)
        p.grad_sample = None
    return found


def by_opacus(make: Make, x: Tensor, kind: str) -> Callable[[], list[Tensor]]:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleExpandedWeights  # type: ignore[import-not-found]

    wrapper = GradSampleModuleExpandedWeights if kind == "expanded weights" else GradSampleModule
    options = {"force_functorch": True} if kind == "functorch" else {}
    module: Any = wrapper(_made(make), loss_reduction="sum", **options)

    def run() -> list[Tensor]:
        module.zero_grad()
        losses_of(module(x)).sum().backward()
        return _taken(module)

    return run


def by_ghost_clipping(make: Make, x: Tensor) -> Callable[[], list[Tensor]]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    module: Any = GradSampleModuleFastGradientClipping(
        _made(make), loss_reduction="sum", max_grad_norm=_MAX_NORM
    )

    def run() -> list[Tensor]:
        module.zero_grad()
        module.enable_hooks()
        losses = losses_of(module(x))
        losses.sum().backward(retain_graph=True)
        factors = module.get_clipping_coef()
        module.zero_grad()
        module.disable_hooks()
        (factors * losses).sum().backward()
        return [p.grad for p in module.parameters()]

    return run


PEERS: dict[str, Callable[[Make, Tensor], Callable[[], list[Tensor]]]] = {
    "a loop": by_loop,
    "torch.func": by_torch_func,
    "ExpandedWeights": by_expanded_weights,
    "Opacus hooks": partial(by_opacus, kind="hooks"),
    "Opacus functorch": partial(by_opacus, kind="functorch"),
}


def _beside(peer: str, make: Make, x: Tensor, clip: bool) -> Both:
    theirs = PEERS[peer](make, x)
    return _ours(make, x, clip), (lambda: clipped(theirs())) if clip else theirs


def _beside_ghost(make: Make, x: Tensor) -> Both:
    return _ours(make, x, True), by_ghost_clipping(make, x)


def is_installed(peer: str) -> bool:
    """Whether the package of ``peer`` is."""
    return not peer.startswith("Opacus") or find_spec("opacus") is not None


def cells() -> Iterator[Cell]:
    for name, (make, x) in programs().items():
        for peer in PEERS:
            if is_installed(peer):
                yield Cell(
                    "per_sample_peers",
                    "",
                    name,
                    f"clipped ÷ {peer}",
                    peer,
                    partial(_beside, peer, make, x, True),
                )
                yield Cell(
                    "per_sample_peers",
                    "",
                    name,
                    f"all ÷ {peer}",
                    peer,
                    partial(_beside, peer, make, x, False),
                )
        if is_installed("Opacus ghost"):
            yield Cell(
                "per_sample_peers",
                "",
                name,
                "clipped ÷ Opacus ghost",
                "Opacus ghost",
                partial(_beside_ghost, make, x),
            )
