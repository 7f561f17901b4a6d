"""The runtime's records as rules that can be watched and given faults: see :class:`gen.targets.faults.Auditable`.

A record is replaced by one whose rules pass through a hook. A watch hooks every rule, a fault the one that it is in.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

import runtime
from gen.targets.faults import KINDS, REFUSED, Call, Rule, change, differs, inexact, moves
from runtime import func as transforms
from runtime.errors import BatchingError, MissingRule
from runtime.expanded_weights.weight import HANDLED
from runtime.func.batch import BatchedValue, BatchLevel
from runtime.func.pushforward import DualValue
from runtime.func.tangent_rules import fit, tangent_rule
from runtime.rules.ops import INPLACE, op_of
from runtime.rules.record import RECORDS, Record, _listeners, asking, parameters
from runtime.seam.levels import Value, innermost
from runtime.session.tensor import SESSION
from runtime.tape.conform import conform
from runtime.tape.nodes import Node
from runtime.tape.values import GradValue

Hook = Callable[[str, Call], Any]  # (name of the rule, its execution) -> the result that the rule gives instead
SURVEYED = 3  # executions of a rule that a watch looks into before it is asked what it saw
_PARAMETERS = ("input", "weight", "bias")
_INDICES = (torch.nn.functional.embedding, "input")  # have no gradient
_NOBODY = Node(SESSION, (), ())  # stands for the node whose gradient is conformed
_hidden = 0  # derivatives under way of which :func:`_at_once` says that no batch rule counts


def fingerprint() -> str:
    """A digest of the runtime's sources."""
    digest = hashlib.sha256()
    for path in sorted(Path(runtime.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def rules() -> list[Rule]:
    """Every rule of every record, by name, and every per-sample rule."""
    found = [rule for func, record in RECORDS.items() for rule in _rules_of(func, record)]
    for function, layer in HANDLED.items():
        names = [name for name in _PARAMETERS if name in layer.signature.parameters and (function, name) != _INDICES]
        found += [Rule(function.__name__, "per_sample", name, "expanded weights") for name in names]
    return sorted(found, key=lambda rule: rule.name)


def _rules_of(func: Any, record: Record) -> Iterator[Rule]:
    """Those that give tensors: not formulas that only refuse or that ask for nothing, nor for what is a number in this overload, nor
    for sizes."""
    op = _name(func)
    tensors = {argument.name for argument in func._schema.arguments if "Tensor" in str(argument.type)}
    for key, formula in (record.vjp or {}).items():
        for argument in (key,) if isinstance(key, str) else key:
            if argument in tensors and parameters(formula) and not getattr(formula, "refuses", False):
                yield Rule(op, "vjp", argument, record.family)
    for part in ("jvp", "batch", "decomposition"):
        rule = getattr(record, part)
        if rule is not None and not getattr(rule, "refuses", False) and any("Tensor" in str(r.type) for r in func._schema.returns):
            yield Rule(op, part, "", record.family, _harmless(func, record) if part == "batch" else ())


def _harmless(func: Any, record: Record) -> tuple[str, ...]:
    """Kinds that leave what a batch rule gives as right as it was, because nothing defines these values: those in uninitialized memory
    (``new_empty``), and the order of draws that are all of one distribution. Where a tensor says of which, as for ``bernoulli(p)``, the
    order counts; that elements of the batch share no draw, and shape and dtype, always do."""
    if record.unfilled:
        return ("mixed", "shared", "rolled", "transposed", "scaled")
    tensors = [argument for argument in func._schema.arguments if "Tensor" in str(argument.type)]
    if record.draws == "shape" and len(tensors) == 1:
        return ("mixed", "rolled", "transposed")
    return ()


def _name(func: Any) -> str:
    return str(func).removeprefix("aten.").removesuffix(".default")


# --- hooks ----------------------------------------------------------------------------------------------------------------------


@contextmanager
def _hooked(hook: Hook, only: Rule | None = None) -> Iterator[None]:
    """Every rule, or one, passes through `hook` inside."""
    funcs = [func for func in RECORDS if only is None or only.op == _name(func)] if only is None or only.part != "per_sample" else []
    layers = [(f, layer) for f, layer in HANDLED.items() if only is None or (only.part, only.op) == ("per_sample", f.__name__)]
    kept = {func: RECORDS[func] for func in funcs}
    plain = [(layer, layer.rule) for _, layer in layers]

    def hook_tangents() -> None:
        """A jvp is compiled from its record, and anew whenever a record is added."""
        for func, record in kept.items():
            if record.jvp is not None and (only is None or only.part == "jvp"):
                op = op_of(func)
                op.jvp = partial(_jvp, hook, f"{_name(func)} jvp", tangent_rule(op), record.elementwise)

    try:
        for func, record in kept.items():
            RECORDS[func] = _with_hook(func, record, hook, only)
        _listeners.append(hook_tangents)
        _forget()
        for function, layer in layers:
            layer.rule = partial(_per_sample, hook, function.__name__, only, layer.rule)
        yield
    finally:
        for layer, rule in plain:
            layer.rule = rule
        if hook_tangents in _listeners:
            _listeners.remove(hook_tangents)
        RECORDS.update(kept)
        _forget()


def _forget() -> None:
    """What was worked out of the records is stale."""
    for listener in tuple(_listeners):
        listener()


def _with_hook(func: Any, record: Record, hook: Hook, only: Rule | None) -> Record:
    name = _name(func)
    changed: dict[str, Any] = {}
    if only is None or only.part in ("vjp", "jvp"):
        changed["elementwise"] = False  # a fault need not be elementwise where the rule is
    if record.vjp is not None and (only is None or only.part == "vjp"):
        changed["vjp"] = {key: _vjp(hook, name, record, key, only) for key in record.vjp}
    if record.batch is not None and (only is None or only.part == "batch"):
        changed["batch"] = partial(_batch, hook, f"{name} batch", record.batch)
    if record.decomposition is not None and (only is None or only.part == "decomposition"):
        changed["decomposition"] = partial(_decomposition, hook, f"{name} decomposition", record.decomposition)
    return replace(record, **changed)


@contextmanager
def _at_once(elementwise: bool, values: Any) -> Iterator[None]:
    """Inside runs a derivative of a record on `values`. Where a hook alone keeps it from running once on all that a batch holds
    (``Record.elementwise``), the batch rules that it runs instead do not count: without hooks they do not run."""
    global _hidden
    level = innermost(values, None) if elementwise else None
    hides = isinstance(level, BatchLevel) and level.line_up(values)[0] is not None
    _hidden += hides
    try:
        yield
    finally:
        _hidden -= hides


def _vjp(hook: Hook, op: str, record: Record, key: Any, only: Rule | None) -> Any:
    table: Any = record.vjp
    formula = table[key]
    own = parameters(formula)
    joint = not isinstance(key, str)
    targets = [(place, f"{op} vjp {argument}") for place, argument in enumerate(key if joint else (key,))]
    targets = [(place, name) for place, name in targets if only is None or only.name == name]
    if not targets:
        return formula
    sibling = next((other for other in table if isinstance(other, str) and other != key), None)
    theirs = parameters(table[sibling]) if sibling is not None and not joint else ()
    facts = [(f"{name}_shape", f"{name}_dtype") for name in (key if joint else (key,))]
    names = tuple(dict.fromkeys((*own, *theirs, *(fact for pair in facts for fact in pair), "needs")))

    def hooked(*values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        metas = [(given[shape], given[dtype]) for shape, dtype in facts]

        def run(*inputs: Any) -> Any:
            with _at_once(record.elementwise and "g" in own, inputs):
                found = formula(*inputs)
            if joint:
                return found and tuple(map(_conformed, found, metas))
            return _conformed(found, metas[0])

        inputs = tuple(given[name] for name in own)
        result: Any = None
        for place, name in targets:
            others: dict[str, Callable[[], Any]] = {}
            if joint:
                others["swapped"] = partial(_exchanged, run, inputs, place)
            elif sibling is not None:
                others["swapped"] = lambda: _conformed(table[sibling](*[given[name] for name in theirs]), metas[0])
            unasked = frozenset(() if name.split()[-1] in given["needs"] else KINDS["vjp"])  # the engine takes no such gradient
            result = hook(name, Call(run, inputs, tuple(map(_role, own)), place if joint else None, others, constant, unasked))
        return result

    return asking(*names)(hooked)


def _conformed(gradient: Any, meta: Any) -> Any:
    """A gradient as the engine takes it: summed to the argument's shape, in its dtype. What is lost there is no part of the rule."""
    shape, dtype = meta
    if isinstance(gradient, (tuple, list)):
        return [_conformed(g, (s, d)) for g, s, d in zip(gradient, shape, dtype, strict=True)]
    if gradient is None or shape is None or gradient.dim() < len(shape):
        return gradient
    return conform(gradient, meta, _NOBODY, 0)


def _role(name: str) -> str:
    if name in ("g", "gs"):
        return "seed"
    return "other" if name == "needs" or name.endswith(("_shape", "_dtype", "_meta", "_geometry")) else "saved"


def _exchanged(run: Any, inputs: Any, place: int) -> Any:
    """A joint formula's result with one gradient in the place of another."""
    result = run(*inputs)
    if result is None:
        return None
    other = next((k for k, part in enumerate(result) if k != place and part is not None), place)
    return tuple(result[other] if k == place else part for k, part in enumerate(result))


def _jvp(hook: Hook, name: str, rule: Any, elementwise: bool, op: Any, primals: Any, tangents: Any, kwargs: Any, result: Any) -> Any:

    def run(*inputs: Any) -> Any:
        with _at_once(elementwise, (*inputs[1], *inputs[2])):
            found = rule(*inputs)  # as the level takes it: expanded to the result's shape, in its dtype
        if isinstance(result, torch.Tensor):
            return fit(found[0] if isinstance(found, (tuple, list)) else found, result)
        if found is None or not isinstance(result, (tuple, list)):
            return found
        return tuple(fit(t, r) if isinstance(r, torch.Tensor) else t for t, r in zip(found, result, strict=True))

    given = [place for place, t in enumerate(tangents) if t is not None]
    others: dict[str, Callable[[], Any]] = {}
    if len(given) > 1:
        fewer = [None if place == given[-1] else t for place, t in enumerate(tangents)]
        others["dropped"] = lambda: run(op, primals, fewer, kwargs, result)
    roles = ("other", "saved", "seed", "other", "saved")
    return hook(name, Call(run, (op, primals, tangents, kwargs, result), roles, others=others, constant=constant))


def _batch(hook: Hook, name: str, rule: Any, func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    if _hidden:
        return rule(func, size, batched, args, kwargs)
    others: dict[str, Callable[[], Any]] = {}
    writes = op_of(func).kind == INPLACE
    moved = None if writes else _with_other_dims(func, batched, args)
    if moved is not None:
        others["dim"] = lambda: rule(func, size, batched, moved, kwargs)
    inert = frozenset(("narrowed",) if writes else ())
    call = Call(rule, (func, size, batched, args, kwargs), ("other",) * 5, others=others, inert=inert)
    found = hook(name, call)
    if writes and isinstance(args[0], torch.Tensor) and isinstance(found, torch.Tensor) and found is not args[0]:
        args[0].copy_(found)
    return found


def _with_other_dims(func: Any, batched: Any, args: Any) -> Any:
    """The arguments with every dimension one further on, or None where there are none or only one."""
    first = args[0][0] if args and isinstance(args[0], (tuple, list)) and args[0] else args[0] if args else None
    if not isinstance(first, torch.Tensor):
        return None
    rank = first.dim() - bool(batched[0])
    moved = list(args)
    for place, argument in enumerate(func._schema.arguments[: len(args)]):
        if argument.name.startswith("dim") and rank > 1:
            value = args[place]
            if isinstance(value, int):
                moved[place] = (value + 1) % rank
            elif isinstance(value, (tuple, list)) and value:
                moved[place] = [(d + 1) % rank for d in value]
    return None if all(a is b for a, b in zip(moved, args, strict=True)) else moved


def _decomposition(hook: Hook, name: str, rule: Any, *args: Any, **kwargs: Any) -> Any:
    return hook(name, Call(lambda *given: rule(*given, **kwargs), args, ("saved",) * len(args), constant=constant))


def _per_sample(hook: Hook, op: str, only: Rule | None, rule: Any, *args: Any, **kwargs: Any) -> Any:
    def hooked(name: str, formula: Any) -> Any:
        full = f"{op} per_sample {name}"
        if only is not None and only.name != full:
            return formula
        return lambda g: hook(full, Call(formula, (g,), ("seed",)))

    return {name: hooked(name, formula) for name, formula in rule(*args, **kwargs).items()}


def constant(value: Any) -> Any:
    """A value without history and tangents, at its own level and at those further out."""
    if isinstance(value, (GradValue, DualValue)):
        return value._level.wrap(constant(value._inner), None)  # type: ignore[union-attr]
    if isinstance(value, BatchedValue):
        return value._level.wrap(constant(value._inner))
    return value


# --- a fault --------------------------------------------------------------------------------------------------------------------


@contextmanager
def planted(name: str, kind: str) -> Iterator[None]:
    """See :meth:`gen.targets.faults.Auditable.planted`."""
    rule = next(rule for rule in rules() if rule.name == name)
    busy = False

    def hook(_: str, call: Call) -> Any:
        nonlocal busy
        if busy:  # the fault's own arithmetic may need the rule that the fault is in
            return call.result()
        before = torch.get_rng_state()
        result = call.result()
        after = torch.get_rng_state()
        torch.set_rng_state(before)  # a rule that draws draws the same with the fault
        busy = True
        try:
            return change(call, kind, result)
        finally:
            busy = False
            torch.set_rng_state(after)

    with _hooked(hook, rule):
        yield


# --- a watch --------------------------------------------------------------------------------------------------------------------


class Watched:
    """See :class:`gen.targets.faults.Watch`. Kinds are tried on the plain tensors behind the values of an execution."""

    def __init__(self) -> None:
        self._parts = {rule.name: rule.part for rule in rules()}
        self._ran: dict[str, set[str]] = {}
        self._looked: Counter[str] = Counter()
        self._depends: dict[str, bool] = {}
        self._tries: Counter[str] = Counter()
        self._busy = False

    def taken(self) -> dict[str, frozenset[str]]:
        found = {name: frozenset(kinds) for name, kinds in self._ran.items()}
        self._ran.clear()
        self._looked.clear()
        return found

    def hook(self, name: str, call: Call) -> Any:
        if self._busy:
            return call.result()
        kinds = self._ran.setdefault(name, set())
        try:
            result = call.result()
        except (MissingRule, BatchingError):
            kinds.add(REFUSED)
            raise
        self._looked[name] += 1
        if self._looked[name] <= SURVEYED:
            self._busy = True
            try:
                with _disable_current_modes(), torch.random.fork_rng(devices=()):
                    kinds.update(self._showing(name, call, result, kinds))
            finally:
                self._busy = False
        return result

    def _showing(self, name: str, call: Call, result: Any, known: set[str]) -> Iterator[str]:
        truth = _plain(result)
        if not _is_plain(truth):
            return
        batched = any(map(_is_batched, call.inputs))
        plain = replace(call, inputs=tuple(map(_plain, call.inputs)), others={})
        looked_into = not batched and all(map(_is_plain, plain.inputs))
        for kind in KINDS[self._parts[name]]:
            if kind in known or kind in call.inert or (batched and not moves(kind, result if call.place is None else result[call.place])):
                continue
            if kind == "detached":
                if not batched and self._depends_on_saved(name, plain) and any(map(_is_tracked, _saved(call))):
                    yield kind
                continue
            try:
                if kind in call.others:
                    shows = differs(_plain(call.others[kind]()), truth)
                else:
                    shows = (looked_into or kind not in ("saved", "edge")) and differs(change(plain, kind, truth), truth)
            except Exception:  # a kind that cannot be done here says nothing of the rule, or fails as loudly as a fault can
                shows = kind in call.others
            if shows:
                yield kind

    def _depends_on_saved(self, name: str, call: Call) -> bool:
        """Whether what the rule gives has a derivative by what it saved: else values that count as constants are no fault."""
        if name not in self._depends and self._tries[name] < 10:
            self._tries[name] += 1
            with suppress(Exception):
                if _derivative(call):
                    self._depends[name] = True
        return self._depends.get(name, False)


def _derivative(call: Call) -> bool:
    places = [place for place, role in enumerate(call.roles) if role == "saved" and _differentiable(call.inputs[place])]

    def of_saved(*saved: Any) -> tuple[Any, ...]:
        inputs = list(call.inputs)
        for place, value in zip(places, saved, strict=True):
            inputs[place] = value
        result = call.run(*inputs)
        parts = result if call.place is None else result[call.place]
        return tuple(part for part in (parts if isinstance(parts, (tuple, list)) else (parts,)) if inexact(part))

    if not places:
        return False
    outputs, pullback = transforms.vjp(of_saved, *[call.inputs[place] for place in places])
    gradients = pullback(tuple(torch.randn_like(output) for output in outputs))
    return any(bool((leaf != 0).any()) for gradient in gradients for leaf in (gradient if isinstance(gradient, list) else [gradient]))


def _differentiable(value: Any) -> bool:
    """All leaves are floating or complex: what a transform takes as one input."""
    leaves = value if isinstance(value, (tuple, list)) else (value,)
    return bool(leaves) and all(map(inexact, leaves))


def _saved(call: Call) -> Iterator[Any]:
    for value, role in zip(call.inputs, call.roles, strict=True):
        if role == "saved":
            yield from value if isinstance(value, (tuple, list)) else (value,)


def _is_tracked(value: Any) -> bool:
    """Whether a value has a history or a tangent that :func:`constant` would take away."""
    while isinstance(value, Value):
        if isinstance(value, GradValue) and value.requires_grad:
            return True
        if isinstance(value, DualValue) and value._tangent is not None:
            return True
        value = value._inner
    return False


def _plain(value: Any) -> Any:
    """What values hold in the end, in tuples and lists as well."""
    if isinstance(value, (tuple, list)):
        held = [_plain(x) for x in value]
        return held if type(value) is list else tuple(held)
    while isinstance(value, Value):
        value = value._inner
    return value


def _is_plain(value: Any) -> bool:
    """Free of tensors that have no values of their own to look at, as those of a symbolic trace."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return not isinstance(value, torch.Tensor) or type(value) is torch.Tensor


def _is_batched(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_batched, value))
    while isinstance(value, Value):
        if isinstance(value, BatchedValue):
            return True
        value = value._inner
    return False


@contextmanager
def watched() -> Iterator[Watched]:
    """See :meth:`gen.targets.faults.Auditable.watched`."""
    watch = Watched()
    with _hooked(watch.hook):
        yield watch


__all__: list[str] = ["fingerprint", "planted", "rules", "watched"]
