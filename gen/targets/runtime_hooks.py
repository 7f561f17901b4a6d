"""Hook the runtime's rules: each record is replaced by one whose rules call a hook.

A watch (:mod:`gen.targets.runtime_watch`) hooks every rule. A fault
(:mod:`gen.targets.runtime_rules`) hooks the one rule that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch

from gen.targets.faults import KINDS, Call, Rule, leaves
from gen.torch_private.loaded_with_torch import OpOverload
from runtime.func.batch import BatchedValue, BatchLevel
from runtime.func.dual_level import DualValue
from runtime.func.tangent_rules import TangentRule, fit, tangent_rule
from runtime.rules.ops import INPLACE, Op, op_of
from runtime.rules.record import RECORDS, Record, asking, listeners, parameters
from runtime.rules.samples.factors import Dense, Term
from runtime.seam.dispatch import innermost
from runtime.session.tensor import SESSION
from runtime.tape.conform import conform
from runtime.tape.nodes import Node
from runtime.tape.values import GradValue

# (name of the rule, its execution) -> the result that replaces the rule's
Hook = Callable[[str, Call], Any]
_NOBODY = Node(SESSION, (), ())  # in place of the node whose gradient is conformed
_hidden = 0  # running derivatives whose batch rules do not count (:func:`_at_once`)


def name_of(func: OpOverload) -> str:
    return str(func).removeprefix("aten.").removesuffix(".default")


@contextmanager
def hooked(hook: Hook, only: Rule | None = None) -> Iterator[None]:
    """Let every rule call `hook`, or only the rule `only`, inside."""
    records = dict(RECORDS)
    if only is not None:
        records = {func: record for func, record in records.items() if name_of(func) == only.op}

    def hook_tangents() -> None:
        """Hook each jvp again: it is compiled from its record whenever a record is added."""
        for func, record in records.items():
            if record.jvp is not None and (only is None or only.part == "jvp"):
                op = op_of(func)
                op.jvp = partial(
                    _jvp, hook, f"{name_of(func)} jvp", tangent_rule(op), record.elementwise
                )

    # Records are replaced in the table itself, which all parts of the runtime read.
    try:
        for func, record in records.items():
            RECORDS[func] = _with_hook(func, record, hook, only)
        listeners.append(hook_tangents)
        _forget()
        yield
    finally:
        if hook_tangents in listeners:
            listeners.remove(hook_tangents)
        RECORDS.update(records)
        _forget()


def _forget() -> None:
    """Discard everything that was derived from the records."""
    for listener in tuple(listeners):
        listener()


def _with_hook(func: OpOverload, record: Record, hook: Hook, only: Rule | None) -> Record:
    """Return a record whose rules of the parts of `only` call the hook."""
    name = name_of(func)
    parts = set(KINDS)
    if only is not None:
        parts = {only.part}
    changed: dict[str, Any] = {}
    if not parts.isdisjoint(("vjp", "jvp")):
        changed["elementwise"] = False  # a fault in an elementwise rule need not be elementwise
    if record.vjp is not None and "vjp" in parts:
        changed["vjp"] = {key: _vjp(hook, name, record, key, only) for key in record.vjp}
    if record.batch is not None and "batch" in parts:
        changed["batch"] = partial(_batch, hook, f"{name} batch", record.batch)
    if record.decomposition is not None and "decomposition" in parts:
        changed["decomposition"] = partial(
            _decomposition, hook, f"{name} decomposition", record.decomposition
        )
    if record.per_sample is not None and "per_sample" in parts:
        formulas = dict(record.per_sample)
        for argument, formula in record.per_sample.items():
            full = f"{name} per_sample {argument}"
            if only is None or only.name == full:
                formulas[argument] = _per_sample(hook, full, formula)
        changed["per_sample"] = formulas
    return replace(record, **changed)


@contextmanager
def _at_once(elementwise: bool, values: Sequence[object]) -> Iterator[None]:
    """Let a derivative of a record on `values` run inside.

    Without hooks, an elementwise derivative (``Record.elementwise``) would run once on the whole
    batch. Only because of the hook it runs batch rules instead, so these do not count.
    """
    global _hidden
    hides = False
    if elementwise:
        level = innermost(values, None)
        hides = isinstance(level, BatchLevel) and level.line_up(values)[0] is not None
    _hidden += hides
    try:
        yield
    finally:
        _hidden -= hides


def _vjp(
    hook: Hook, op: str, record: Record, key: str | tuple[str, ...], only: Rule | None
) -> Callable[..., object]:
    """Return a formula of the gradients of `key` that calls the hook for each rule in it."""
    table: Any = record.vjp
    formula: Callable[..., Any] = table[key]
    own_names = parameters(formula)
    joint = not isinstance(key, str)
    arguments: Sequence[str] = leaves(key)
    targets = [(place, f"{op} vjp {argument}") for place, argument in enumerate(arguments)]
    if only is not None:
        targets = [(place, name) for place, name in targets if name == only.name]
    if not targets:
        return formula
    sibling: str | None = None
    names_of_sibling: tuple[str, ...] = ()
    if not joint:  # a joint formula has the gradients of other arguments itself
        sibling = _sibling(table, key)
    if sibling is not None:
        names_of_sibling = parameters(table[sibling])
    facts = [(f"{argument}_shape", f"{argument}_dtype") for argument in arguments]
    # The engine passes what the parameters of a formula name: by `asking`, all that is used here.
    names = tuple(
        dict.fromkeys((*own_names, *names_of_sibling, *chain.from_iterable(facts), "needs"))
    )

    def hooked(*values: Any) -> Any:
        arguments_by_name = dict(zip(names, values, strict=True))
        metas = [(arguments_by_name[shape], arguments_by_name[dtype]) for shape, dtype in facts]

        def run(*inputs: object) -> Any:
            with _at_once(record.elementwise and "g" in own_names, inputs):
                gradient = formula(*inputs)
            if not joint:
                return _conform(gradient, metas[0])
            # None if none of the gradients is needed
            if not gradient:
                return gradient
            return tuple(map(_conform, gradient, metas))

        inputs = tuple(arguments_by_name[name] for name in own_names)
        result: Any = None
        # A watch sees each gradient of a joint formula, and gives the same result each time. A
        # fault has one target.
        for place, name in targets:
            others: dict[str, Callable[[], Any]] = {}
            if joint:
                others["swapped"] = partial(_exchange, run, inputs, place)
            elif sibling is not None:
                others["swapped"] = lambda: _conform(
                    table[sibling](*[arguments_by_name[name] for name in names_of_sibling]),
                    metas[0],
                )
            call = Call(run, inputs, tuple(map(_role, own_names)), None, others, constant)
            if joint:
                call = replace(call, place=place)
            if name.split()[-1] not in arguments_by_name["needs"]:
                # the engine accepts no such gradient
                call = replace(call, inert=frozenset(KINDS["vjp"]))
            result = hook(name, call)
        return result

    return asking(*names)(hooked)


def _sibling(table: Iterable[str | tuple[str, ...]], key: str | tuple[str, ...]) -> str | None:
    """Return another argument that has a formula of its own."""
    return next((other for other in table if isinstance(other, str) and other != key), None)


def _conform(gradient: Any, meta: tuple[Any, Any]) -> Any:
    """Return a gradient as the engine changes it: summed to the argument's shape, in its dtype.

    What the engine removes is not part of the rule.
    """
    shape, dtype = meta
    if isinstance(gradient, (tuple, list)):
        return [
            _conform(part, (size, argument_dtype))
            for part, size, argument_dtype in zip(gradient, shape, dtype, strict=True)
        ]
    if gradient is None or shape is None or gradient.dim() < len(shape):
        return gradient
    return conform(gradient, meta, _NOBODY, 0)


def _role(name: str) -> str:
    if name in ("g", "gs"):
        return "seed"
    if name == "needs" or name.endswith(("_shape", "_dtype", "_meta", "_geometry")):
        return "other"
    return "saved"


def _exchange(run: Callable[..., Any], inputs: Sequence[Any], place: int) -> tuple[Any, ...] | None:
    """Return the result of a joint formula with another gradient at `place`."""
    result = run(*inputs)
    if result is None:
        return None
    parts = list(result)
    for other, part in enumerate(result):
        if other != place and part is not None:
            parts[place] = part
            break
    return tuple(parts)


def _jvp(
    hook: Hook,
    name: str,
    rule: TangentRule,
    elementwise: bool,
    op: Op,
    primals: list[object],
    tangents: list[object],
    kwargs: dict[str, object],
    result: object,
) -> object:
    """Call the hook on the tangents of an op, which are expanded and cast as the level does it."""

    def run(*inputs: Any) -> Any:
        with _at_once(elementwise, (*inputs[1], *inputs[2])):
            # changed as the level does it: expanded to the result's shape, in its dtype
            tangent = rule(*inputs)
        if isinstance(result, torch.Tensor):
            return fit(leaves(tangent)[0], result)
        if tangent is None or not isinstance(result, (tuple, list)):
            return tangent
        return tuple(map(_fit, tangent, result))

    places = [place for place, tangent in enumerate(tangents) if tangent is not None]
    others: dict[str, Callable[[], Any]] = {}
    if len(places) > 1:
        fewer = list(tangents)
        fewer[places[-1]] = None
        others["dropped"] = lambda: run(op, primals, fewer, kwargs, result)
    inputs = (op, primals, tangents, kwargs, result)
    roles = ("other", "saved", "seed", "other", "saved")
    return hook(name, Call(run, inputs, roles, others=others, constant=constant))


def _fit(tangent: Any, result: object) -> object:
    """Return the tangent of one of several results. What is no tensor has none to change."""
    if not isinstance(result, torch.Tensor):
        return tangent
    return fit(tangent, result)


def _batch(
    hook: Hook,
    name: str,
    rule: Callable[..., object],
    func: OpOverload,
    size: int,
    batched: Sequence[bool],
    args: Sequence[object],
    kwargs: dict[str, object],
) -> Any:
    """Call the hook on the batch of an op, unless an elementwise derivative runs it."""
    if _hidden:
        return rule(func, size, batched, args, kwargs)
    call = Call(rule, (func, size, batched, args, kwargs), ("other",) * 5)
    if op_of(func).kind == INPLACE:
        return _batch_in_place(hook, name, call, args[0])
    moved = _with_other_dims(func, batched, args)
    if moved is not None:
        by_other_dims = partial(rule, func, size, batched, moved, kwargs)
        call = replace(call, others={"dim": by_other_dims})
    return hook(name, call)


def _batch_in_place(hook: Hook, name: str, call: Call, written: object) -> object:
    """Return the result of a rule that writes.

    A faulty result is written too, in the dtype of what is there.
    """
    result = hook(name, replace(call, inert=frozenset(("narrowed",))))
    if result is written or not isinstance(result, torch.Tensor):
        return result
    if isinstance(written, torch.Tensor):
        written.copy_(result)
    return result


def _with_other_dims(
    func: OpOverload, batched: Sequence[bool], args: Sequence[object]
) -> list[object] | None:
    """Return the arguments with every dimension argument increased by one, or None if no argument
    changes.
    """
    if not args or not leaves(args[0]):
        return None
    first = leaves(args[0])[0]
    if not isinstance(first, torch.Tensor):
        return None
    rank = first.dim() - bool(batched[0])
    if rank <= 1:
        return None
    moved = list(args)
    for place, argument in enumerate(func._schema.arguments[: len(args)]):
        if argument.name.startswith("dim"):
            moved[place] = _next_dims(args[place], rank)
    if all(a is b for a, b in zip(moved, args, strict=True)):
        return None
    return moved


def _next_dims(value: object, rank: int) -> object:
    """Return the dimension after `value`, or after each of several, if these are dimensions."""
    if isinstance(value, int):
        return (value + 1) % rank
    if isinstance(value, (tuple, list)) and value:
        return [(dim + 1) % rank for dim in value]
    return value


def _decomposition(
    hook: Hook, name: str, rule: Callable[..., object], *args: object, **kwargs: object
) -> object:
    run = partial(rule, **kwargs)
    return hook(name, Call(run, args, ("saved",) * len(args), constant=constant))


def _per_sample(hook: Hook, name: str, formula: Callable[..., Any]) -> Callable[..., object]:
    """Return a formula of factored gradients.

    A fault changes the gradients, so the hook gets them without factors.
    """
    own_names = parameters(formula)

    def hooked(*values: object) -> Term | None:
        if formula(*values) is None:
            return None
        call = Call(lambda *inputs: formula(*inputs).dense(), values, tuple(map(_role, own_names)))
        return Dense(hook(name, call))

    return asking(*own_names)(hooked)


def constant(value: object) -> Any:
    """Return a value without history and tangents, at its own level and at outer levels."""
    if isinstance(value, (GradValue, DualValue)):
        return value._level.wrap(constant(value._inner))
    if isinstance(value, BatchedValue):
        return value._level.wrap(constant(value._inner))
    return value
