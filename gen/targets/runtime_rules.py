"""List the runtime's records as rules for the audit, and plant faults in them: see
:class:`gen.targets.faults.Auditable`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import runtime
from gen.targets.faults import Call, Rule, change, leaves
from gen.targets.runtime_hooks import hooked, name_of
from gen.torch_private.loaded_with_torch import OpOverload
from runtime.rules.record import RECORDS, Record, parameters


def fingerprint() -> str:
    """Return a digest of the runtime's sources."""
    digest = hashlib.sha256()
    for path in sorted(Path(runtime.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def rules() -> list[Rule]:
    """List every rule of every record, by name."""
    every_rule = chain.from_iterable(_rules_of(func, record) for func, record in RECORDS.items())
    return sorted(every_rule, key=lambda rule: rule.name)


def _rules_of(func: OpOverload, record: Record) -> Iterator[Rule]:
    """Yield the rules of a record that return tensors.

    Left out are formulas that only refuse or that ask for nothing, formulas for arguments that are
    numbers in this overload, and sizes."""
    op = name_of(func)
    for argument in _arguments_with_gradient(func, record):
        yield Rule(op, "vjp", argument, record.family)
    for argument in record.per_sample or ():
        yield Rule(op, "per_sample", argument, record.family)
    if not any("Tensor" in str(result.type) for result in func._schema.returns):
        return
    for part in ("jvp", "batch", "decomposition"):
        rule = getattr(record, part)
        if rule is not None and not _refuses(rule):
            harmless: tuple[str, ...] = ()
            if part == "batch":
                harmless = _harmless_kinds(func, record)
            yield Rule(op, part, "", record.family, harmless)


def _arguments_with_gradient(func: OpOverload, record: Record) -> Iterator[str]:
    """List the tensor arguments for which the record has a gradient."""
    tensors = {
        argument.name for argument in func._schema.arguments if "Tensor" in str(argument.type)
    }
    for key, formula in (record.vjp or {}).items():
        if _refuses(formula) or not parameters(formula):
            continue
        yield from filter(tensors.__contains__, leaves(key))


def _refuses(rule: object) -> bool:
    """Return whether a rule only says why there is no such derivative or batch."""
    return getattr(rule, "refuses", False)


def _harmless_kinds(func: OpOverload, record: Record) -> tuple[str, ...]:
    """List kinds that leave the result of a batch rule as right as it was, because nothing defines
    the values that they change.

    These are values in uninitialized memory (``new_empty``), and the order of draws from one
    distribution. The order counts if a tensor gives the distribution, as in ``bernoulli(p)``. Shape
    and dtype always count, and elements of the batch must not share a draw.
    """
    if record.unfilled:
        return ("mixed", "shared", "rolled", "transposed", "scaled")
    tensors = [argument for argument in func._schema.arguments if "Tensor" in str(argument.type)]
    if record.draws == "shape" and len(tensors) <= 1:
        return ("mixed", "rolled", "transposed")
    return ()


@contextmanager
def planted(name: str, kind: str) -> Iterator[None]:
    """Run with a fault of `kind` in the rule of that name, see
    :meth:`gen.targets.faults.Auditable.planted`.
    """
    rule = next(rule for rule in rules() if rule.name == name)
    busy = False

    def hook(_: str, call: Call) -> Any:
        nonlocal busy
        if busy:  # the fault's own arithmetic may use the faulty rule
            return call.result()
        before = torch.get_rng_state()
        result = call.result()
        after = torch.get_rng_state()
        torch.set_rng_state(before)  # with the fault, a rule draws the same numbers
        busy = True
        try:
            return change(call, kind, result)
        finally:
            busy = False
            torch.set_rng_state(after)

    with hooked(hook, rule):
        yield
