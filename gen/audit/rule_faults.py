"""Plant faults inside the rules of a target, one at a time, and learn which cells of the matrix
catch them (`gen audit --rules`).

Every cell runs once under a watch. The watch says which rules the cell runs, and which kinds of
fault would change their results there. A fault that could never show in a result is not drawn,
whether or not a cell would catch it. A drawn fault is tried only on cells that run its rule, cheap
ones of different checks first, until a cell fails that passes without the fault.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gen.audit.campaign import Finding
from gen.audit.reach import Reach, op_of, take_turns
from gen.audit.workers import Job, Workers
from gen.targets.faults import KINDS, REFUSED, Rule

__all__ = ["RuleFault", "Rules"]

CELLS = 150  # at most so many are tried for one fault
# kinds that a watch may miss where values are batched
_UNSEEN = frozenset(("saved", "edge", "swapped", "dropped", "dim"))


@dataclass(frozen=True)
class RuleFault:
    """A mistake of one kind in one rule."""

    rule: Rule
    kind: str

    @property
    def where(self) -> str:
        """Return the part of the rule, by which a report groups faults."""
        return self.rule.part

    @property
    def family(self) -> str:
        """Return the family of ops that the rule is of."""
        return self.rule.family

    def __str__(self) -> str:
        return f"{self.rule.name} {self.kind}"


class Rules:
    """The rules of a target with the cells that run them."""

    def __init__(self, rules: Sequence[Rule], reached: Iterable[Reach], seed: int) -> None:
        self.rules = rules
        self.seed = seed
        self._running: dict[str, list[Reach]] = {}
        self.learn(reached)

    def learn(self, reached: Iterable[Reach]) -> None:
        """Replace what is known of cells by `reached`."""
        self._running.clear()
        for reach in sorted(reached, key=lambda reach: (reach.seconds, reach.key)):
            for name in reach.rules:
                self._running.setdefault(name, []).append(reach)

    def kinds(self, rule: Rule) -> list[str]:
        """Return the kinds of fault that would change a result in a cell.

        For a rule that no cell runs, the first kind of its part.
        """
        if rule.name not in self._running:
            return [rule.kinds[0]]
        showing: set[str] = set()
        for reach in self._answering(rule):
            showing |= reach.rules[rule.name]
        return [kind for kind in rule.kinds if kind in showing]

    def _answering(self, rule: Rule) -> list[Reach]:
        """Return the cells that run a rule, without those in which it refuses."""
        running = self._running.get(rule.name, ())
        return [reach for reach in running if REFUSED not in reach.rules[rule.name]]

    @property
    def unrun(self) -> list[Rule]:
        """Return the rules that no cell runs."""
        return [rule for rule in self.rules if rule.name not in self._running]

    @property
    def inert(self) -> list[Rule]:
        """Return the rules that run, but in which no kind of fault would change a result: they
        return nothing, or only refuse.
        """
        return [rule for rule in self.rules if not self.kinds(rule)]

    def drawn(self) -> Iterator[RuleFault]:
        """Yield every fault: one in each rule, then a second kind in each, and so on. Parts take
        turns, so that a short run has some of each.

        The draw of one rule depends on no other rule. So adding or removing a rule moves the others
        by one place at most.
        """
        rules = sorted(self.rules, key=lambda rule: self._lot(rule.name))
        rounds: defaultdict[tuple[int, str], list[RuleFault]] = defaultdict(list)
        for rule in rules:
            for turn, kind in enumerate(self._kinds_by_lot(rule)):
                rounds[turn, rule.part].append(RuleFault(rule, kind))
        # a part has its turn where its first rule has one, also in rounds that lack this rule
        parts = dict.fromkeys(rule.part for rule in rules)
        for turn in range(max(map(len, KINDS.values()))):
            yield from take_turns([rounds[turn, part] for part in parts])

    def _kinds_by_lot(self, rule: Rule) -> list[str]:
        return sorted(self.kinds(rule), key=lambda kind: self._lot(f"{rule.name} {kind}"))

    def _lot(self, text: str) -> bytes:
        return hashlib.sha256(f"{self.seed} {text}".encode()).digest()

    def cells(self, fault: RuleFault) -> list[str]:
        """Return cells that may catch a fault: cheap ones first, and one of every check before a
        second of any.
        """
        showing: list[Reach] = []
        hidden: list[Reach] = []
        for reach in self._answering(fault.rule):
            if fault.kind in reach.rules[fault.rule.name]:
                showing.append(reach)
            elif fault.kind in _UNSEEN:
                hidden.append(reach)
        return [*_keys_by_turns(showing), *_keys_by_turns(hidden)][:CELLS]

    def related(self, rule: Rule, ops: Iterable[str]) -> set[str]:
        """Return the ops of `ops` whose cells may run the rule: they run another rule of its op, or
        have its name in theirs.
        """
        running: set[str] = set()
        for name, some in self._running.items():
            if name.split()[0] == rule.op:
                running.update(op_of(reach.key) for reach in some)
        if known := running.intersection(ops):
            return known
        word = rule.op.split(".")[0].removesuffix("_backward").strip("_")
        return {op for op in ops if word in op}

    def findings(
        self, faults: Sequence[RuleFault], workers: Workers, further: Callable[[set[Rule]], None]
    ) -> Iterator[Finding[RuleFault]]:
        """Yield the result of each fault, as soon as it is known.

        `further` is called once with the rules of the faults that survive. It calls :meth:`learn`
        with more cells, on which these faults are then tried.
        """
        survived: dict[RuleFault, Finding[RuleFault]] = {}
        trials = {fault: self.cells(fault) for fault in faults}
        for finding in self._try_faults(trials, workers):
            if finding.caught is None:
                survived[finding.fault] = finding
            else:
                yield finding
        if not survived:
            return
        further({fault.rule for fault in survived})
        # A second round tries the survivors on the cells that `further` has added.
        added = {fault: self._cells_but(fault, set(trials[fault])) for fault in survived}
        for finding in self._try_faults(added, workers):
            if finding.caught is None:
                first = survived[finding.fault]
                survived[finding.fault] = _both_rounds(first, finding)
            else:
                del survived[finding.fault]
                yield finding
        yield from survived.values()

    def _cells_but(self, fault: RuleFault, tried: set[str]) -> list[str]:
        """Return cells that may catch a fault, without those on which it was tried."""
        return [key for key in self.cells(fault) if key not in tried]

    def _try_faults(
        self, trials: Mapping[RuleFault, Sequence[str]], workers: Workers
    ) -> Iterator[Finding[RuleFault]]:
        """Run each fault on its cells. Jobs are sorted, since neighbours share a module and its
        samples.
        """
        waiting: dict[tuple[str, str], RuleFault] = {}
        jobs: list[Job] = []
        for fault, cells in trials.items():
            if not cells:
                yield Finding(fault, True, why="no cell that passes runs the rule")
                continue
            waiting[fault.rule.name, fault.kind] = fault
            jobs.append(Job("try", tuple(cells), fault.rule.name, fault.kind))

        def module_and_op(job: Job) -> tuple[str, str, str]:
            return job.arguments[0].split("-")[0], job.rule, job.kind

        for job, tried in workers.each(sorted(jobs, key=module_and_op)):
            fault = waiting[job.rule, job.kind]
            # a fault that ends the process is one that a run of the matrix shows
            if tried is None:
                yield Finding(fault, True, job.arguments[0], "the process died")
            else:
                yield Finding(fault, True, tried.caught, tried.why, tried.cells)


def _both_rounds(first: Finding[RuleFault], second: Finding[RuleFault]) -> Finding[RuleFault]:
    """Return the finding of a fault that survived two rounds, with the cells of both."""
    if not second.cells:
        return first
    return replace(second, cells=first.cells + second.cells)


def _keys_by_turns(reached: Iterable[Reach]) -> Iterator[str]:
    """Yield the keys of cells, one of each check, then a second of each, and so on."""
    by_check: defaultdict[str, list[str]] = defaultdict(list)
    for reach in reached:
        by_check[reach.key.split("::")[1].split("[")[0]].append(reach.key)
    return take_turns(list(by_check.values()))
