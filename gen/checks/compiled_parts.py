"""The stage ``aot.parts``: an op runs as it is, and the target gives what the op asks for by
:mod:`gen.targets.parts`: programs in it, compiled, and functions of the target's own."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any, cast

from gen.checks.pipelines import Program
from gen.outcomes import Mismatch, Unsuitable
from gen.samples.seeds import Replay
from gen.targets.parts import Compile, Part, parts_compiled
from gen.targets.protocol import Compiling, Flat, Target, Values


def of(program: Program, axes: Mapping[str, str]) -> Program:
    """`program` with its parts compiled. `axes` may have ``shapes``, ``partition``, ``by`` and
    ``cuts``. A reference compiles nothing.

    With ``cuts: loaded`` it runs twice. The first run leaves its partitions in a folder, and the
    second one has to find them all there."""

    def over(target: Target) -> Flat:
        f = program.over(target)
        if target.name in ("loop", "numeric"):
            return f
        compiling = cast(Compiling, target)

        def g(*values: Any) -> Values:
            if axes.get("cuts") != "loaded":
                with parts_compiled(_compile(compiling, axes, None), compiling.offered):
                    return f(*values)
            draws = Replay()
            with TemporaryDirectory() as folder:
                with parts_compiled(
                    _compile(compiling, axes, compiling.cache(folder)), compiling.offered
                ):
                    f(*values)
                draws.rewind()
                cache = compiling.cache(folder)
                with parts_compiled(_compile(compiling, axes, cache), compiling.offered):
                    found = f(*values)
            _require_loaded(cache.info())
            return found

        return g

    return Program(
        over, program.inputs, program.differentiable, program.seed, f"aot.parts({program.label})"
    )


def _compile(target: Compiling, axes: Mapping[str, str], cache: Any) -> Compile:
    options: dict[str, Any] = {
        "partition": axes.get("partition", "default"),
        "dynamic": axes.get("shapes") == "dynamic",
    }

    def make(f: Part, examples: tuple[Any, ...]) -> Part:
        return target.part(f, examples, jits=axes.get("by") == "jit", cache=cache, **options)

    return make


def _require_loaded(info: Any) -> None:
    """Every partition came from the folder."""
    if info.misses:
        raise Mismatch(
            "a partition of the first run was not found by the second one: "
            f"{', '.join(info.misses)}"
        )
    if not info.hits:
        raise Unsuitable("no part is differentiated, so there is nothing to keep")
