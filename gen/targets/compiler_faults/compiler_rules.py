"""The places of ``torch.compile`` for faults, as rules of a target: see
:class:`gen.targets.faults.Auditable`.

    with watched(target) as watch:
        torch.compile(f, backend=target.backend)(x)
        watch.taken()               # {"forward_graph graph": {"sign", …}, "GRAD_MODE guard": {}, …}
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from torch import fx

from gen.targets.compiler_faults.graph_faults import EDITS, edit_graph
from gen.targets.compiler_faults.stage_faults import RECOMPILES, STAGES
from gen.targets.faults import Rule, Watch
from gen.torch_private.compiler_stages import aot_backend, as_it_is

__all__ = ["Compiling", "fingerprint", "planted", "rules", "watched"]

GRAPHS = ("forward_graph", "backward_graph")
Backend = Callable[..., Callable[..., Any]]
See = Callable[[str, fx.GraphModule], None]


class Compiling(Protocol):
    """A target that hands its programs to a backend of ``torch.compile``."""

    backend: str | Backend


def fingerprint() -> str:
    """Return a digest of the faults and of torch's version."""
    digest = hashlib.sha256(version("torch").encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def rules() -> list[Rule]:
    """List every place, by name."""
    places = [Rule(name, "graph", family="compiler") for name in GRAPHS]
    places += [Rule(name, stage.part, family="compiler") for name, stage in STAGES.items()]
    return sorted(places, key=lambda rule: rule.name)


@contextmanager
def planted(target: Compiling, rule: str, kind: str) -> Iterator[None]:
    """Run with a fault of `kind` at the place of the rule of that name."""
    name = rule.split()[0]
    if name not in GRAPHS:
        stage = STAGES[name]
        with stage.replaced(stage.faults[kind]):
            yield
        return

    def edit(place: str, module: fx.GraphModule) -> None:
        if place == name and edit_graph(module.graph, kind):
            module.recompile()

    with _graphs_seen(target, edit):
        yield


@contextmanager
def watched(target: Compiling) -> Iterator[Watch]:
    """Note which places run, and which faults would change what they do."""
    watch = _Watch()
    with ExitStack() as stack:
        stack.enter_context(_graphs_seen(target, watch.note_graph))
        for name, stage in STAGES.items():
            note = functools.partial(watch.note, name)
            stack.enter_context(stage.replaced(stage.observed(note)))
        stack.enter_context(RECOMPILES.replaced(RECOMPILES.observed(watch.note_recompilation)))
        yield watch


@contextmanager
def _graphs_seen(target: Compiling, see: See) -> Iterator[None]:
    """Show ``see`` each graph of AOTAutograd before it runs. A backend without it has none."""
    if target.backend != "aot_eager":
        yield
        return

    def compiler(place: str) -> Callable[..., Any]:
        def compile_graph(module: fx.GraphModule, inputs: list[Any]) -> Any:
            see(place, module)
            return as_it_is(module, inputs)

        return compile_graph

    forward, backward = map(compiler, GRAPHS)
    original = target.backend
    # `keep_inference_input_mutations` as torch sets it for its own backend aot_eager
    target.backend = aot_backend(
        fw_compiler=forward, bw_compiler=backward, keep_inference_input_mutations=True
    )
    try:
        yield
    finally:
        target.backend = original


class _Watch:
    """See :class:`gen.targets.faults.Watch`."""

    def __init__(self) -> None:
        self._parts = {rule.op: rule.part for rule in rules()}
        self._ran: dict[str, set[str]] = {}
        self._recompiled = False

    def taken(self) -> dict[str, frozenset[str]]:
        """Return the places that ran since the last call, with the faults that would show.

        A guard that is not asked shows where a program was compiled once more.
        """
        found = {}
        for name, kinds in self._ran.items():
            part = self._parts[name]
            if part == "guard" and not self._recompiled:
                kinds = set()
            found[f"{name} {part}"] = frozenset(kinds)
        self._ran.clear()
        self._recompiled = False
        return found

    def note(self, name: str, kinds: set[str]) -> None:
        """Note that a place ran, and the mistakes that would show."""
        self._ran.setdefault(name, set()).update(kinds)

    def note_graph(self, place: str, module: fx.GraphModule) -> None:
        """Try each mistake on a copy of a graph."""
        kinds = self._ran.setdefault(place, set())
        for kind in EDITS.keys() - kinds:
            # an edit cannot be undone, and the cell still runs this graph
            copy = fx.Graph()
            copy.output(copy.graph_copy(module.graph, {}))
            if edit_graph(copy, kind):
                kinds.add(kind)

    def note_recompilation(self, _: object) -> None:
        """Note that a guard did not hold."""
        self._recompiled = True
