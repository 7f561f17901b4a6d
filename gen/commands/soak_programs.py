"""Run `gen soak-programs`: draw programs by number until the time is over.

The programs run in a process of their own. If one kills it or takes too long, that is its outcome,
and another process goes on with the next number.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gen.plan.matrix_plan import above
from gen.run.selection.shard import Shard, parse_shard
from gen.severity import Severity

_TOO_LONG = 300.0  # seconds of one program, with all that makes it smaller
_SHRINKING = 90.0  # seconds to make one small that kills its process
_LEVELS = (
    "eager",
    "dynamo",
    "aot_eager",
    "aot_dynamic",
    "inductor",
    "functional",
    "export",
    "session",
    "jit",
)
_EPILOG = """
levels:
  eager        torch itself, compared with a model of tensors
  dynamo       torch.compile(backend="eager")
  aot_eager    torch.compile(backend="aot_eager")
  aot_dynamic  torch.compile(backend="aot_eager", dynamic=True)
  inductor     torch.compile()
  functional   torch.func.functionalize, of which values and gradients are compared
  export       torch.export, anew for each call
  session      this project's runtime, by its drop-in
  jit          runtime.jit

A soak goes on in a folder with --resume: by the same seed, levels and shard.
Exit codes: 0 nothing differs, 1 something does, 2 the input is wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen soak-programs`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--level",
        action="append",
        choices=_LEVELS,
        help="what runs the programs, see below; several times for several (default: aot_eager)",
    )
    parser.add_argument(
        "--minutes", type=above(0), default=10.0, help="how long to draw (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, help="the same seed draws the same programs (default: another one)"
    )
    parser.add_argument(
        "--shard", default="1/1", metavar="I/N", help="every N-th program (default: %(default)s)"
    )
    parser.add_argument(
        "--most", type=above(0, kind=int), metavar="N", help="stop when N causes are found"
    )
    parser.add_argument("--resume", action="store_true", help="go on in the folder of --out")
    parser.add_argument(
        "--out", type=Path, help="folder for what was found (default: .cache/programs/SEED)"
    )


def run(args: argparse.Namespace) -> int:
    """Draw, and write each cause as a program and as YAML."""
    try:
        soak = _soak_of(args)
    except (ValueError, LookupError) as error:
        print(error.args[0], file=sys.stderr)
        return 2
    print(f"{soak.plan.text}, {args.minutes:g} minutes")
    soak.run(time.monotonic() + 60 * args.minutes, args.most)
    print(soak.summary())
    return 1 if soak.entries else 0


def _soak_of(args: argparse.Namespace) -> _Soak:
    """Return what a command line asks for. ``ValueError`` or ``LookupError`` if it is wrong."""
    levels = tuple(dict.fromkeys(args.level or ["aot_eager"]))
    seed = args.seed
    if args.resume:
        if args.out is None:
            raise ValueError("--resume needs the folder --out that it goes on in")
        state = _read_state(args.out)
        if seed is None:
            seed = state["seed"]
    elif seed is None:
        seed = random.SystemRandom().randrange(1 << 30)
    plan = _Plan(levels, seed, parse_shard(args.shard))
    out = args.out or Path(".cache") / "programs" / str(seed)
    if not args.resume:
        if (out / "state.json").exists():
            raise ValueError(
                f"{out} has a soak already: go on with --resume, or name another --out"
            )
        return _Soak(plan, out, next=plan.shard[0] - 1)
    if state["plan"] != plan.text:
        raise ValueError(f"{out} is the soak of {state['plan']}, not of {plan.text}")
    lines = (out / "findings.jsonl").read_text(encoding="utf-8").splitlines()
    return _Soak(plan, out, state["next"], list(map(json.loads, lines)), _Counts(**state["counts"]))


def _read_state(out: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((out / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise LookupError(f"{out} has no soak that could go on: it has no state.json") from None
    return state


@dataclass(frozen=True)
class _Plan:
    """Which programs a soak draws, and what runs them."""

    levels: tuple[str, ...]
    seed: int
    shard: Shard

    @property
    def text(self) -> str:
        return (
            f"{', '.join(self.levels)} by seed {self.seed}, shard {'/'.join(map(str, self.shard))}"
        )


@dataclass
class _Counts:
    """How many programs were run, refused by torch, or like one before."""

    run: int = 0
    refused: int = 0
    repeated: int = 0


@dataclass
class _Soak:
    """The process that runs programs, and what came of it."""

    plan: _Plan
    out: Path
    # the number of the next program
    next: int
    entries: list[dict[str, Any]] = field(default_factory=list)
    counts: _Counts = field(default_factory=_Counts)

    def run(self, end: float, most: int | None) -> None:
        """Run processes of programs until the time is over."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "findings.jsonl").touch()
        start, before = time.monotonic(), self.counts.run
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as progress:
            task = progress.add_task("drawing")

            def show() -> None:
                minutes = (time.monotonic() - start) / 60 + 1e-9  # never 0, which divides
                rate = (self.counts.run - before) / minutes
                progress.update(
                    task,
                    description=f"{self.counts.run} programs ({rate:.0f} a minute), "
                    f"{len(self.entries)} causes",
                )

            while time.monotonic() < end and not self._has(most):
                self._process(end, most, show)

    def _has(self, most: int | None) -> bool:
        return most is not None and len(self.entries) >= most

    def _process(self, end: float, most: int | None, show: Callable[[], None]) -> None:
        """Run one process to its end or death."""
        context = multiprocessing.get_context("spawn")
        messages: Any = context.Queue()
        arguments = (self.plan, self.next, self.entries, end - time.monotonic(), messages)
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        since = time.monotonic()
        try:
            # A process that has ended may have left messages.
            while process.is_alive() or not messages.empty():
                try:
                    kind, content = messages.get(timeout=0.5)
                except queue.Empty:
                    show()
                    if time.monotonic() - since > _TOO_LONG:
                        process.kill()
                        self._note_end("timed out", f"it ran for more than {_TOO_LONG:g} s")
                        return
                    continue
                # each message is a sign of life: the limit is for one program
                since = time.monotonic()
                if kind == "ended":
                    return
                if kind == "done":
                    self._go_on(*content)
                else:
                    self._add(content)
                if self._has(most):
                    return
            self._note_end("crashed", f"the process ended with exit code {process.exitcode}")
        finally:
            process.kill()
            process.join()

    def _go_on(self, number: int, counts: dict[str, int]) -> None:
        """Note that a program is done."""
        self.next = number + self.plan.shard[1]
        totals = {name: getattr(self.counts, name) + count for name, count in counts.items()}
        self.counts = _Counts(**totals)
        state = {
            "plan": self.plan.text,
            "seed": self.plan.seed,
            "next": self.next,
            "counts": vars(self.counts),
        }
        # A soak that is killed while it writes leaves the state of before.
        unfinished = self.out / "state.json.part"
        unfinished.write_text(json.dumps(state), encoding="utf-8")
        unfinished.replace(self.out / "state.json")

    def _note_end(self, kind: str, why: str) -> None:
        """Note that the process is gone with the program that it ran."""
        entry = self._small_death() or self._whole_death(kind, why)
        known = any(_is_same_death(earlier, entry) for earlier in self.entries)
        if not known:
            self._add(entry)
        # behind the number that died, or the next process would die of it too
        self._go_on(self.next, {"run": 1, "refused": 0, "repeated": int(known)})

    def _small_death(self) -> dict[str, Any] | None:
        """Return the entry of the smallest program that dies alike. None if none does by itself."""
        context = multiprocessing.get_context("spawn")
        messages: Any = context.Queue()
        process = context.Process(target=_shrink, args=(self.plan, self.next, messages))
        process.start()
        end = time.monotonic() + 2 * _SHRINKING
        try:
            while time.monotonic() < end and (process.is_alive() or not messages.empty()):
                with suppress(queue.Empty):
                    entry: dict[str, Any] | None = messages.get(timeout=0.5)
                    return entry
            return None
        finally:
            process.kill()
            process.join()

    def _whole_death(self, kind: str, why: str) -> dict[str, Any]:
        """Return the entry of the program that ran, as it was drawn. It has no script."""
        from gen.grammar import Difference, Finding, draw, entry_of, load_grammar

        program = draw(load_grammar(), self.plan.seed, self.next)
        if program is None:
            raise RuntimeError(f"the process that draws could not start: {why}")
        severity = {"crashed": Severity.CRASH, "timed out": Severity.SLOW}[kind]
        last = len(program.calls) - 1
        difference = Difference(" or ".join(self.plan.levels), kind, why, last, severity)
        finding = Finding(program, difference, self.next, program.kinds())
        return {**entry_of(finding), "script": None}

    def _add(self, entry: dict[str, Any]) -> None:
        """Write a finding, and print it."""
        script = entry.pop("script")
        self.entries.append(entry)
        with (self.out / "findings.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if script is not None:
            (self.out / f"{entry['name']}.py").write_text(script, encoding="utf-8")
        by_severity = sorted(self.entries, key=_rank)
        (self.out / "programs.yaml").write_text(
            yaml.safe_dump(by_severity, sort_keys=False, width=120, allow_unicode=True),
            encoding="utf-8",
        )
        print(f"\n{entry['name']}\n  {entry['message'][:200]}")

    def summary(self) -> str:
        """Return counts, and the causes by severity."""
        counts = self.counts
        lines = [
            f"{counts.run} programs, of which torch refuses {counts.refused}",
            f"{len(self.entries)} causes, and {counts.repeated} more programs with one of them",
        ]
        for severity in sorted(Severity, reverse=True):
            of_severity = [entry for entry in self.entries if entry["severity"] == severity.word]
            if of_severity:
                lines.append(f"{len(of_severity)} {severity.meaning}")
        if self.entries:
            lines.append(f"each is a script in {self.out}, and an entry of programs.yaml there")
        return "\n".join(lines)


def _is_same_death(known: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Return whether a process ended alike, and the program has all that the known one has."""
    alike = all(known[key] == entry[key] for key in ("level", "part"))
    return alike and set(known["words"]) <= set(entry["words"])


def _shrink(plan: _Plan, number: int, messages: Any) -> None:
    """Make the program of a number small at the first level that kills a process."""
    import torch

    from gen.grammar import LEVELS, draw, entry_of, load_grammar, script_of, small_death

    torch.set_num_threads(1)
    program = draw(load_grammar(), plan.seed, number)
    if program is None:
        return
    end = time.monotonic() + _SHRINKING
    for name in plan.levels:
        found = small_death(program, LEVELS[name](), number, end)
        if found is not None:
            script = script_of(found.program, found.difference)
            messages.put({**entry_of(found), "script": script})
            return


def _rank(entry: dict[str, Any]) -> int:
    return -int(Severity.of_word(entry["severity"]))


def _work(
    plan: _Plan, number: int, entries: Sequence[dict[str, Any]], seconds: float, messages: Any
) -> None:
    """Run programs in a process of its own, and send what was found."""
    import torch

    from gen.grammar import LEVELS, Search, entry_of, finding_of, load_grammar, script_of

    torch.set_num_threads(1)
    known = list(map(finding_of, entries))
    search = Search(load_grammar(), [LEVELS[name]() for name in plan.levels], plan.seed, known)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = (search.run, search.refused, search.repeated)
        for finding in search.try_number(number):
            script = script_of(finding.program, finding.difference)
            messages.put(("found", {**entry_of(finding), "script": script}))
        after = (search.run, search.refused, search.repeated)
        # The counts of this number alone: another process may go on, and begins with zeros.
        grown = [now - earlier for earlier, now in zip(before, after, strict=True)]
        counts = dict(zip(("run", "refused", "repeated"), grown, strict=True))
        messages.put(("done", (number, counts)))
        number += plan.shard[1]
    messages.put(("ended", None))
