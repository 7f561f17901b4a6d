"""Draw cells until the time is over. Hypothesis shrinks the first draw of each cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisException

from gen.soak.space import Draw, Subject, draws
from gen.soak.trial import Failure, Rejected, run
from gen.targets.protocol import Target

_ROUND = 100  # draws of one round of hypothesis, which remembers all of them


@dataclass
class Counts:
    """How many draws were run, and how many of them were no cells."""

    run: int = 0
    rejected: int = 0


@dataclass
class Search:
    """Draw cells and group their failures by cause."""

    target: Target
    subjects: Sequence[Subject]
    # is called with each draw, and with whether the target runs, or else the op or a reference
    trying: Callable[[Draw, bool], None]
    # is called with each failure when it is as simple as it gets
    found: Callable[[Failure], None]
    # is called with each failure of a cause that is known
    again: Callable[[Failure], None] = lambda failure: None
    # the causes that are known
    known: set[tuple[str, ...]] = field(default_factory=set)
    counts: Counts = field(default_factory=Counts)

    def until(self, end: float, number: int) -> None:
        """Draw by `number` until ``time.monotonic()`` is `end`."""
        while time.monotonic() < end:
            self._round(end, number)
            number += 1_000_003  # far away: the next process begins with the number after the first

    def _round(self, end: float, number: int) -> None:
        """Draw one round. Hypothesis shrinks the first failure of an unknown cause."""
        failures: list[Failure] = []

        @seed(number)
        @settings(
            max_examples=_ROUND,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(draws(self.subjects, self.target.lacks))
        def trial(draw: Draw) -> None:
            # a failure that is not made smaller in time is kept as it is
            if time.monotonic() > end:
                return
            failure = self._run(draw)
            if failure is not None:
                failures.append(failure)
                raise _kind_of(failure.cause)

        try:
            trial()
        except _Failing:
            self._keep(failures[-1])
        except HypothesisException:  # it failed once, and not when it was run again
            if failures:
                self._keep(failures[-1])

    def _run(self, draw: Draw) -> Failure | None:
        """Run one draw. Return its failure, if its cause is not known yet."""
        self.trying(draw, False)
        self.counts.run += 1
        try:
            failure = run(draw, self.target, lambda runs: self.trying(draw, runs))
        except Rejected:
            self.counts.rejected += 1
            return None
        if failure is not None and failure.cause in self.known:
            self.again(failure)
            return None
        return failure

    def _keep(self, failure: Failure) -> None:
        self.known.add(failure.cause)
        self.found(failure)


class _Failing(Exception):
    """A failure. Each cause has its own subclass, so that hypothesis does not shrink one cause to
    another.
    """


_kinds: dict[tuple[str, ...], type[_Failing]] = {}


def _kind_of(cause: tuple[str, ...]) -> type[_Failing]:
    return _kinds.setdefault(cause, type("Found", (_Failing,), {}))
