"""What a caller can see of a program: results, gradients, writes, aliases, versions, buffers, the
state of random numbers.

``observed(engine, case, wrapped)`` is a list of pairs, a label and what was seen. ``difference``
compares two such lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import runtime

from .surroundings import Engine, Surroundings, function_of, values

if TYPE_CHECKING:
    from .programs import CallText, Case

Seen = list[tuple[str, Any]]
UNCOUNTED = (
    ".data",
    "unsafe_",
    "t_()",
    "unsqueeze_",
    "squeeze_",
    "transpose_",
    "swapaxes_",
    ".view(torch.int32)",
)
"""Programs with these do not have their versions compared. They may differ by one, since
the graph makes one change of several. And in inference mode torch counts no write to a view
of another dtype."""
TURNED = ("t_()", "transpose_", "swapaxes_")
"""Programs with these have gradients compared only where all of them runs with grad mode.
Torch does not record such a change under ``no_grad``, and takes the gradient of the new
geometry for one of the old."""
LOW = ("float16", "bfloat16", "half()", "autocast")
NORMALIZED = ("layer_norm", "norm(", "layer(")
"""Programs with these do not have their third derivatives compared. Those of torch's batch_norm and
layer_norm are wrong: they differ from differences of its second ones."""
UNSEEN = (".data", "unsafe_")
"""Programs with these do not have their gradients compared. A write through them changes what torch
has saved unnoticed."""


def arguments_of(engine: Engine, text: CallText) -> tuple[list[Any], list[Any]]:
    """The tensors that the lines of a call make, each object once, and the arguments."""

    def leaf(
        number: int, shape: Sequence[int], dtype: torch.dtype, requires_grad: bool = False
    ) -> Any:
        return engine.leaf(values(number, shape, dtype), requires_grad)

    scope: dict[str, Any] = {"torch": torch, "leaf": leaf}
    for line in text.lines:
        exec(line, scope)
    given = eval(f"({text.args},)", scope)
    return _once([t for name, t in scope.items() if isinstance(t, torch.Tensor)]), list(given)


def _version(t: Any) -> int:
    return -1 if t.is_inference() else int(t._version)


def _once(tensors: Sequence[Any]) -> list[Any]:
    return list({id(t): t for t in tensors}.values())


def observed(
    engine: Engine, case: Case, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> list[Seen]:
    """What is seen of each call of the wrapped program. An error of a call itself is raised. One of
    what follows ends the list."""
    surroundings = Surroundings(engine)
    f = wrapped(function_of(case.program, surroundings))
    source = str(case)
    counts, differentiates = (
        not any(word in source for word in UNCOUNTED),
        not any(word in source for word in UNSEEN),
    )
    # the sine of a large number of 16 bits is any number
    thrice = not any(word in source for word in NORMALIZED + LOW)
    hidden = "no_grad" in source or "inference_mode" in source
    turned = any(word in case.program for word in TURNED)
    return [
        _Observation(
            surroundings,
            text,
            counts,
            differentiates and not (turned and (hidden or not text.grad)),
            thrice,
        ).of(f)
        for text in case.calls
    ]


class _Observation:
    """One call and what follows it. ``counts``: whether versions are looked at. ``differentiates``:
    whether gradients are. ``thrice``: whether third derivatives are."""

    def __init__(
        self,
        surroundings: Surroundings,
        text: CallText,
        counts: bool,
        differentiates: bool,
        thrice: bool,
    ) -> None:
        self.surroundings = surroundings
        self.thrice = thrice
        self.counts = counts
        self.differentiates = differentiates
        self.text = text
        self.made, self.given = arguments_of(surroundings.engine, text)
        self.flat = [t for t in pytree.tree_leaves(self.given) if isinstance(t, torch.Tensor)]
        self.seen: Seen = []
        self.picks: Iterator[float] = iter(text.picks)

    def of(self, f: Callable[..., Any]) -> Seen:
        """Call the program, and return what is seen of it and of what follows."""
        outside = [*self.made, *self.flat, *self.surroundings.tensors]
        versions = [_version(t) for t in outside]
        result = self.surroundings.call(f, self.text, self.given)
        changes = [_version(t) - v for t, v in zip(outside, versions, strict=True)]
        same = [t for t, change in zip(outside, changes, strict=True) if change == 0]
        # Only versions say which arguments the program has not written to.
        self.unwritten = self._arguments_among(same) if self.counts else []
        self.see_results(result)
        self.look("after the call")
        if self.counts:
            self.see("versions", changes)
        self.see("random state", [torch.get_rng_state(), self.surroundings.generator.get_state()])
        self.see_what_follows()
        return self.seen

    def _arguments_among(self, tensors: Sequence[Any]) -> list[Any]:
        return [t for t in tensors if any(t is argument for argument in self.flat)]

    def see_results(self, result: Any) -> None:
        """See the structure of a result, its constants, and the tensors that it shares."""
        leaves, spec = pytree.tree_flatten(result)
        self.results = [t for t in leaves if isinstance(t, torch.Tensor)]
        self.see("structure", str(spec))
        self.see("constants", [x for x in leaves if not isinstance(x, torch.Tensor)])
        everything = [*self.made, *self.flat, *self.surroundings.tensors]
        for i, t in enumerate(self.results):
            among_outside = [t is other for other in everything]
            self.see(f"result {i} is", [among_outside, [t is other for other in self.results]])

    def see_what_follows(self) -> None:
        """Do what the text says to the results, up to the first error."""
        for action in self.text.after:
            try:
                getattr(self, action.replace(" ", "_"))()
            except RuntimeError as error:
                self.see("error", error)
                break

    def see(self, label: str, what: Any) -> None:
        self.seen.append((label, what))

    @property
    def tensors(self) -> list[tuple[str, Any]]:
        every = [
            ("result", self.results),
            ("argument", self.flat),
            ("base", self.made),
            ("outside", self.surroundings.tensors),
        ]
        return [(f"{what} {i}", t) for what, some in every for i, t in enumerate(some)]

    def look(self, when: str) -> None:
        for name, t in self.tensors:
            plain = t.detach()
            strides = (
                [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] if t.numel() else []
            )
            self.see(f"{name} {when}", [plain.resolve_conj().clone(), strides])
            self.see(f"flags of {name} {when}", [t.requires_grad, t.is_leaf])

    def differentiable(self) -> list[Any]:
        """The leaves whose gradients are looked at."""
        return _once(
            [t for t in (*self.made, *self.surroundings.tensors) if t.requires_grad and t.is_leaf]
        )

    def loss(self, tensors: Sequence[Any]) -> Any:
        # one None more or less changes no other place
        places = {id(t): i for i, t in reversed([*enumerate(tensors, 1)])}
        found = [(places[id(t)], t) for t in _once(tensors) if t is not None and t.requires_grad]
        if not found:
            return None
        real = [
            (i, torch.view_as_real(t.resolve_conj()) if t.is_complex() else t) for i, t in found
        ]
        return sum((t.double().sin() * i).sum() for i, t in real)

    def gradients(
        self,
        create_graph: bool = False,
        of: Sequence[Any] | None = None,
        by: Sequence[Any] | None = None,
    ) -> list[Any]:
        """The gradients of a loss of the tensors ``of`` with respect to ``by``."""
        wanted, grad = self.differentiable() if by is None else by, self.surroundings.engine.grad
        loss = self.loss([*self.results, *self.flat] if of is None else of)
        if loss is None or not wanted or not self.differentiates:
            return []
        found = grad(
            loss,
            wanted,
            allow_unused=True,
            create_graph=create_graph,
            retain_graph=True if create_graph else None,
        )
        self.see("gradients", [None if g is None else g.detach() for g in found])
        return list(found)

    def second(self) -> None:
        self._again(self.gradients(create_graph=True), create_graph=False)

    def third(self) -> None:
        second = self._again(self.gradients(create_graph=True), create_graph=self.thrice)
        if self.thrice:
            self._again(second, create_graph=False)

    def _again(self, gradients: Sequence[Any], create_graph: bool) -> list[Any]:
        """The gradients of a loss of gradients, of those that are small enough for a sine in 32
        bits. Torch has None for some of those without elements."""
        small = [
            g if g is not None and g.numel() and not bool((g.detach().abs() > 10).any()) else None
            for g in gradients
        ]
        loss, wanted = self.loss(small), self.differentiable()
        if loss is None:
            return []
        found = self.surroundings.engine.grad(
            loss, wanted, allow_unused=True, create_graph=create_graph
        )
        # torch makes None of some derivatives without elements, and not of others
        self.see(
            "further derivatives",
            [None if g is None or not g.numel() else g.detach() for g in found],
        )
        return list(found)

    def twice(self) -> None:
        """Two passes through one graph."""
        wanted, loss = self.differentiable(), self.loss([*self.results, *self.flat])
        if loss is not None and wanted and self.differentiates:
            for retain in (True, False):
                found = self.surroundings.engine.grad(
                    loss, wanted, allow_unused=True, retain_graph=retain
                )
                self.see("gradients", [None if g is None else g.detach() for g in found])

    def some(self) -> None:
        """The gradients of one result alone."""
        if self.results:
            self.gradients(of=[self._pick(self.results)])

    def between(self) -> None:
        """The gradients of arguments that are no leaves and that the program has not written to."""
        self.gradients(by=[t for t in _once(self.unwritten) if t.requires_grad and not t.is_leaf])

    def accumulated(self) -> None:
        """What ``backward`` leaves in ``grad``, with hooks on the arguments that the program
        has not written to."""
        loss = self.loss([*self.results, *self.flat])
        if loss is None or not self.differentiates:
            return
        hooked: list[Any] = []
        for i, t in enumerate(_once(self.unwritten)):
            if t.requires_grad:
                t.register_hook(lambda g, at=i: hooked.append((at, g.detach())))
        loss.backward()
        self.see("hooked", sorted(hooked, key=lambda pair: pair[0]))
        self.see(
            "accumulated",
            [None if t.grad is None else t.grad.detach() for t in self.differentiable()],
        )

    def turned(self) -> None:
        """Gradients with a cotangent of other strides than its result."""
        found = [t for t in _once(self.results) if t.requires_grad and t.is_floating_point()]
        if not found or not self.differentiates or not self.differentiable():
            return
        t = self._pick(found)
        cotangent = values(3, t.shape[::-1], t.dtype).permute(tuple(range(t.dim()))[::-1])
        found = self.surroundings.engine.grad(
            t, self.differentiable(), cotangent, allow_unused=True
        )
        self.see("gradients", [None if g is None else g.detach() for g in found])

    def _pick(self, pool: Sequence[Any]) -> Any:
        return pool[min(int(next(self.picks) * len(pool)), len(pool) - 1)]

    def write(self) -> None:
        with torch.no_grad():
            self._write()

    def recorded_write(self) -> None:
        self._write()

    def _write(self) -> None:
        t = self._pick([t for _, t in self.tensors])
        t.logical_not_() if t.dtype is torch.bool else t.add_(1)
        self.look("after a write")


def difference(a: Sequence[Seen], b: Sequence[Seen], tolerance: float) -> str:
    """The first label at which two observations differ, or an empty string. What follows an error
    in the first one does not count."""
    for call, (expected, found) in enumerate(zip(a, b, strict=True)):
        for i, (label, x) in enumerate(expected):
            if label == "error":
                return ""
            other, y = found[i] if i < len(found) else ("nothing", None)
            if isinstance(y, Exception):
                raise y
            # eager mode has None for what no node leads to, and a graph may compute zeros
            if label == other == "further derivatives":
                x, y = _without_none(x, y), _without_none(y, x)
            if label != other or not same(x, y, tolerance):
                return f"call {call}, {label}: {x}, but found {other}: {y}"
        if len(found) > len(expected):
            label, y = found[len(expected)]
            if isinstance(y, Exception):
                raise y
            # a gradient that is constant requires grad if a graph computes it
            if label != "further derivatives":
                return f"call {call}: found {label} as well"
    return ""


def _without_none(a: Any, b: Any) -> list[Any]:
    """``a``, with zeros for None where ``b`` has a tensor."""
    return [
        torch.zeros_like(y) if x is None and y is not None else x for x, y in zip(a, b, strict=True)
    ]


def same(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype is not b.dtype:
            return False
        x, y, scale = _plain(a), _plain(b), 1.0
        # sums of such terms round to the largest of them
        if a.dtype in (torch.bfloat16, torch.float16) and x.numel():
            scale = max(1.0, x.abs().nan_to_num(posinf=0).amax().item())
        return torch.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def _plain(t: torch.Tensor) -> torch.Tensor:
    return runtime.unwrap(t) if isinstance(t, runtime.Tensor) else t
