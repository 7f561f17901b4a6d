"""Say of each word whether a target fulfils what the protocol says of it.

    for finding in ProtocolCheck("mine", "cpu").findings():
        print(finding.word, finding.state, finding.note)

A word that stands in ``lacks`` is left out. Any other has to have its method, with a signature that
takes the protocol's calls, and small cells have to pass (:mod:`gen.conformance.trial_cells`). They
run in a process of its own, which a target may end.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from gen.conformance.trial_cells import FORWARD, PLAIN_OPS, TRIALS, Trial, verdict
from gen.conformance.watched_target import WatchedTarget, signature_fault
from gen.devices.device import load_device
from gen.errors import nearest
from gen.outcomes import Crashed
from gen.run.isolation import POSSIBLE, Worker
from gen.targets import load
from gen.targets.lacking_words import WORDS, Word, is_word
from gen.targets.protocol import Target

__all__ = ["FAULTY", "LACKS", "NOT_TRIED", "OK", "About", "Finding", "ProtocolCheck"]

OK, LACKS, FAULTY, NOT_TRIED = "ok", "lacks", "faulty", "not tried"
_SECONDS = 120.0  # of the trials of one word
_MOST_OPS = 2  # that a target with ops of its own is tried by


@dataclass(frozen=True)
class Finding:
    """What is so of one word."""

    word: str
    state: str  # OK, LACKS, FAULTY or NOT_TRIED
    note: str = ""  # the cells that ran, or what is wrong


@dataclass(frozen=True)
class About:
    """What a target says of itself."""

    kind: str  # its class, such as "mine.target.Target"
    name: str
    lacks: tuple[str, ...]
    own_ops: tuple[str, ...] | None  # that it is tried by; None if it runs torch's ops

    def unknown_words(self) -> Iterator[tuple[str, str]]:
        """Yield each text of ``lacks`` that is no word, with the nearest one."""
        for text in itertools.filterfalse(is_word, self.lacks):
            yield text, nearest(text, WORDS)


class ProtocolCheck:
    """The check of one target on one device.

    Raises LookupError, when it is asked, if the target cannot be loaded.
    """

    def __init__(self, name: str, device: str = "cpu") -> None:
        self._name = name
        self._device = device
        self._worker = Worker(self._answer)

    def about(self) -> About:
        """Return what the target says of itself."""
        return cast("About", self._ask(""))

    def findings(self) -> Iterator[Finding]:
        """Yield what is so of each word, in the order of the table."""
        for word in (FORWARD, *WORDS):
            try:
                finding = cast("Finding", self._ask(word))
            except Crashed as error:  # or it took too long
                finding = Finding(word, FAULTY, f"the process that tried it: {error}")
            yield finding

    def close(self) -> None:
        """End the process that has the target."""
        self._worker.close()

    def _ask(self, question: str) -> object:
        if not POSSIBLE:
            return self._answer(question)
        return self._worker.ask(question, _SECONDS)

    # --- in the process that has the target -------------------------------------------------------

    def _answer(self, word: str) -> object:
        """Return what is so of a word, or what the target says of itself."""
        load_device(self._device)
        target = load(self._name)
        if not word:
            return _about(target)
        return _Trials(target, self._device).finding(word)


def _about(target: Target) -> About:
    """Return what a target says of itself. One that has ops of its own has the method `op`."""
    kind = type(target)
    has = getattr(target, "op", None)
    own_ops = None
    if has is not None:
        own_ops = tuple(name for name in PLAIN_OPS if has(name) is not None)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return About(name, str(target.name), tuple(sorted(target.lacks)), own_ops)


class _Trials:
    """The trials of a target, which is in this process."""

    def __init__(self, target: Target, device: str) -> None:
        self._target = target
        self._about = _about(target)
        self._device = device

    def finding(self, word: str) -> Finding:
        """Return what is so of a word. The first thing that is wrong is the finding."""
        known = WORDS.get(word, Word("", FORWARD))
        if self._is_lacking(word, known.stages):
            return Finding(word, LACKS)
        if known.method and not callable(getattr(self._target, known.method, None)):
            return Finding(
                word,
                FAULTY,
                f"the target has no method `{known.method}`, and `lacks` has no word `{word}`",
            )
        if known.method and (fault := self._signature_fault(known)):
            return Finding(word, FAULTY, fault)
        return self._tried(word)

    def _is_lacking(self, word: str, stages: Sequence[str]) -> bool:
        lacks = self._target.lacks
        return word in lacks or (bool(stages) and lacks.issuperset(stages))

    def _signature_fault(self, known: Word) -> str:
        return signature_fault(self._target, known.protocol, known.method)

    def _tried(self, word: str) -> Finding:
        """Run the trials of a word, up to the first that fails."""
        passed: Counter[str] = Counter()
        left_out: dict[str, None] = {}  # each reason once, in order
        for trial in TRIALS:
            if trial.word != word:
                continue
            for op in self._ops(trial):
                watched = WatchedTarget(self._target)
                came = verdict(watched, trial, op, self._device)
                if came.failed:
                    return Finding(word, FAULTY, f"{trial.pipeline} of {op}: {came.why}")
                if came.outcome == "passed":
                    passed[trial.pipeline] += 1
                else:
                    left_out[came.why] = None
        if passed:
            cells = passed.total()
            shown = ", ".join(passed)
            return Finding(word, OK, f"{cells} cell{'s' * (cells != 1)} of {shown} passed")
        return Finding(word, NOT_TRIED, "; ".join(left_out) or "no small cell shows it")

    def _ops(self, trial: Trial) -> Sequence[str]:
        """Return the ops of a trial: those that the target has, if it has ops of its own."""
        if self._about.own_ops is None:
            return trial.ops
        if set(trial.ops) <= set(PLAIN_OPS):
            return self._about.own_ops[:_MOST_OPS]
        return trial.ops
