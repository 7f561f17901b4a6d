"""Ask kernels for right and wrong calls, in processes that may die of them.

faults_of(kernel, [arguments])     ->     [Fault(call, "SIGSEGV")]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gen.checks.compare import Tally
from gen.checks.kernels.call_descriptions import Arguments, Undescribed, describe
from gen.checks.kernels.dying_calls import Death, outcomes_of
from gen.checks.kernels.kernel_calls import Kernel, KernelCall
from gen.checks.kernels.wrong_arguments import wrong_calls
from gen.outcomes import Lacking, Mismatch, Unsuitable
from gen.samples.samples import Sample
from gen.targets.protocol import Target
from gen.torch_private.aten_overloads import full_name, with_kernel
from gen.torch_private.loaded_with_torch import OpOverload

__all__ = ["RIGHT_CALLS", "Asked", "Fault", "ask", "assert_no_faults", "recorded", "right_calls"]


_MOST_DEATHS = 8
"""Deaths of a kernel after which no more is asked of it. Each costs a fork, and one is enough."""
_TRIES = 2  # of a call that a process has died of, which may live if memory lies otherwise
_SUSPECTS = 6  # calls before it that may have left memory in disorder


@dataclass(frozen=True)
class Fault:
    """What a call did that no call may do: how its process ended, or what it says."""

    call: KernelCall
    text: str


@dataclass
class Asked:
    """The outcome of calls of a kernel."""

    # the number of calls
    count: int = 0
    faults: list[Fault] = field(default_factory=list)
    # calls that took too long
    slow: list[KernelCall] = field(default_factory=list)
    # the number of calls that were not made, since the kernel has ended too many processes
    left_out: int = 0

    def by_text(self) -> dict[str, list[str]]:
        """Return what was wrong with the calls that had a fault, by what the fault says."""
        labels: dict[str, dict[str, None]] = {}
        for fault in self.faults:
            # several right calls may have the same fault
            labels.setdefault(fault.text, {})[fault.call.label] = None
        return {text: list(of_text) for text, of_text in labels.items()}


def ask(kernel: Kernel, right: Iterable[Arguments]) -> Asked:
    """Make the right calls of a kernel, and wrong ones of each.

    ``right``: the arguments of the right calls. A wrong call that follows from several of them is
    made once.

    Returns what came of all calls. A fault of a right call is one, too. After some deaths no more
    is asked, and ``left_out`` says how many calls were not made.
    """
    calls: dict[str, KernelCall] = {}
    for arguments in right:
        call = KernelCall(kernel, arguments)
        # Descriptions are plain data, so equal calls have equal texts.
        for asked_call in (call, *wrong_calls(call)):
            calls.setdefault(repr(asked_call.arguments), asked_call)
    return _ask(list(calls.values()))


def _ask(calls: Sequence[KernelCall]) -> Asked:
    """Make the calls, and say what came of them.

    A process makes one call after another until it dies. So a death may be that of an earlier call
    of the same process, which has written to memory of others.
    """
    outcomes = outcomes_of(
        len(calls), lambda number: calls[number].fault().encode(), most_deaths=_MOST_DEATHS
    )
    asked = Asked(len(outcomes), left_out=len(calls) - len(outcomes))
    begin = 0  # the first call of the present process
    for number, outcome in enumerate(outcomes):
        if not isinstance(outcome, Death):
            if outcome:
                asked.faults.append(Fault(calls[number], outcome.decode()))
            continue
        if outcome.is_slow:
            asked.slow.append(calls[number])
        else:
            asked.faults.append(_death(calls[begin : number + 1], outcome))
        begin = number + 1
    return asked


def _death(calls: Sequence[KernelCall], death: Death) -> Fault:
    """Return the fault of the last call, or of an earlier one that has left the memory in disorder.

    The last call is made alone. If it lives then, some of the others are, the last one first, and
    the process looks at its memory afterwards.
    """
    last = calls[-1]
    for suspect in (*[last] * _TRIES, *reversed(calls[-1 - _SUSPECTS : -1])):
        (outcome,) = outcomes_of(1, lambda _: _alone(suspect))  # noqa: B023  # called at once
        if isinstance(outcome, Death) and not outcome.is_slow:
            return Fault(suspect, outcome.cause)
    return Fault(last, f"{death.cause}, though not alone")


def _alone(call: KernelCall) -> bytes:
    """Make a call, and then claim and free memory of many sizes, which finds it in disorder.

    glibc compares the sizes that it keeps beside each piece, and ends the process if one is wrong.
    """
    fault = call.fault()
    pieces = [bytearray(1 << size) for size in range(4, 20) for _ in range(8)]
    del pieces
    return fault.encode()


# --- cells ----------------------------------------------------------------------------------------

RIGHT_CALLS = Path(__file__).with_name("right_calls.jsonl")
"""The file of right calls: a line for each overload."""
_SHOWN = 4  # calls with the same fault in a message


def recorded(x: object) -> object:
    """Return the argument. A row with this call has right calls of its op in the file."""
    return x


def assert_no_faults(target: Target, sample: Sample, tally: Tally) -> None:
    """Raise Mismatch if a right or a wrong call of the kernels of a row does what none may do.

    ``sample``: of a row whose op is an overload, such as ``torch.ops.mine.doubled.default``, which
    is its right call; or of one whose ``call`` is :func:`recorded`, such as ``torch.ops.aten.mm``,
    for all overloads of that name. The message names each fault: the overload, the argument, and
    how the process ended or what the kernel did. ``tally`` gets an entry for each call.

    Raises Lacking for a target that runs other kernels than torch's, and Unsuitable if no right
    call is known.
    """
    if target.name != "torch":
        raise Lacking("kernels are torch's own, and target torch asks them")
    texts: list[str] = []
    for kernel, right in _kernels(sample):
        asked = ask(kernel, right)
        tally.entries += asked.count
        tally.nonzero += asked.count
        texts += [
            f"{kernel.name}: {text}: {_listed(labels)}" for text, labels in asked.by_text().items()
        ]
    # A cell that asks nothing must not pass.
    if not tally.entries:
        raise Unsuitable(f"no right call of {sample.op.name} is known")
    if texts:
        raise Mismatch("; ".join(texts))


def _listed(labels: Sequence[str]) -> str:
    """Return the first few of what was wrong, and how many others there are.

    The message is to name a call to begin with. All calls of a cell would be some thousand words.
    """
    others = len(labels) - _SHOWN
    more = [f"and {others} more"] if others > 0 else []
    return ", ".join([*labels[:_SHOWN], *more])


def _kernels(sample: Sample) -> Iterator[tuple[Kernel, list[Arguments]]]:
    """Yield the kernels of a row, each with its right calls.

    A row of a name has all overloads of that name, since they share a kernel or call one another.
    An overload without a right call is left out; ``gen/dispatcher/reasons.yaml`` says why.
    """
    if sample.op.call is not recorded:
        yield _own_kernel(sample)
        return
    base = sample.op.name.removeprefix("torch.ops.aten.")
    for overload in with_kernel(base):
        right = right_calls().get(full_name(overload))
        if right:
            yield Kernel.of_overload(overload), right


def _own_kernel(sample: Sample) -> tuple[Kernel, list[Arguments]]:
    """Return what a row of one op calls, with the sample as its right call.

    Raises Unsuitable if an argument has no description, such as a tensor of a subclass.
    """
    args, kwargs = sample.rebuild(sample.inputs)
    call = sample.op.call
    if isinstance(call, OpOverload):
        kernel = Kernel.of_overload(call)
    else:
        kernel = Kernel.of_function(sample.op.name, call, args, kwargs)
    names = [parameter.name for parameter in kernel.parameters if not parameter.by_name]
    # A call may leave out the last parameters.
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    try:
        described = {name: describe(value, exact=True) for name, value in values.items()}
    except Undescribed as what:
        raise Unsuitable(f"{sample.description} has {what}, which has no description") from None
    return kernel, [described]


@cache
def right_calls() -> dict[str, list[Arguments]]:
    """Return the right calls of the file by the name of the overload."""
    if not RIGHT_CALLS.exists():
        return {}
    by_overload: dict[str, list[Arguments]] = {}
    for line in RIGHT_CALLS.read_text().splitlines():
        ((name, calls),) = json.loads(line).items()
        by_overload[name] = calls
    return by_overload
