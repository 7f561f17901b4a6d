"""The functionalize level: runs a program in which tensors are mutated and aliased without mutating anything.

A :class:`FunctionalValue` is a view (possibly the trivial one) of a :class:`Store`, which holds the present value of one base. A write
computes the functional form of the op, puts the result back into the base through the views between, and advances the store's
generation; every other view of it finds that when it is next read, and takes its value anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import InplaceError
from ..rules.ops import FUNCTIONAL, INPLACE, OUT, VIEW, Op, op_of
from ..seam.level_mode import LevelMode
from ..seam.levels import Level, Value
from ..seam.shells import faithful_shell
from ..seam.surgery import GEOMETRY, change_geometry
from .scatter import copying_form, put_back

aten = torch.ops.aten
_overloads: dict[Any, Any] = {}


class Store:
    """What a family of aliases has in common."""

    __slots__ = ("generation", "value")

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self.generation = 0


class FunctionalValue(Value):
    """A view of a store. ``_inner`` is its value as of ``_seen``; read it through ``FunctionalLevel.read``."""

    _level: FunctionalLevel
    _store: Store
    _chain: tuple[Any, ...] = ()  # (func, arguments after self, kwargs, output number or None) per view op
    _seen: int

    @property
    def _version(self) -> int:  # type: ignore[override]
        return self._store.generation

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"FunctionalValue(level={self._level.number}, {self._level.read(self)!r})"


class FunctionalLevel(Level):
    """One running functionalization. ``views``: whether views are replaced by copies as well."""

    __slots__ = ("closed_over", "held", "mode", "views")
    what = "functionalize"

    def __init__(self, remove: str = "mutations") -> None:
        super().__init__()
        self.views = remove == "mutations_and_views"
        self.mode = LevelMode(self)
        self.closed_over: dict[int, FunctionalValue] = {}
        self.held: list[torch.Tensor] = []

    def wrap(self, inner: torch.Tensor, store: Store | None = None, chain: tuple[Any, ...] = ()) -> FunctionalValue:
        v: FunctionalValue = faithful_shell(FunctionalValue, inner)
        v._level = self
        v._inner = inner
        v._store = store or Store(inner)
        v._chain = chain
        v._seen = v._store.generation
        return v

    def read(self, v: FunctionalValue) -> torch.Tensor:
        """The present value of ``v``."""
        store = v._store
        if v._seen != store.generation:
            value = store.value
            for func, rest, kwargs, which in v._chain:
                value = self._view_op(func)(value, *rest, **kwargs)
                if which is not None:
                    value = value[which]
            v._inner = value
            v._seen = store.generation
        return v._inner

    def write(self, v: FunctionalValue, new: torch.Tensor) -> None:
        """Make ``new`` the value of ``v`` and of what it is a view of."""
        store = v._store
        if new.dtype is not v.dtype:
            new = new.to(v.dtype)
        if new.shape != v.shape:
            raise RuntimeError(f"output with shape {list(v.shape)} doesn't match the broadcast shape {list(new.shape)}")
        bases = [store.value]
        for func, rest, kwargs, which in v._chain[:-1]:
            out = self._view_op(func)(bases[-1], *rest, **kwargs)
            bases.append(out if which is None else out[which])
        for (func, rest, kwargs, which), base in zip(reversed(v._chain), reversed(bases), strict=bool(v._chain)):
            new = put_back(func, base, new, which, rest, kwargs, self.views)
        store.value = self._with_history(store.value, new, v)
        store.generation += 1

    def _with_history(self, old: torch.Tensor, new: torch.Tensor, v: FunctionalValue) -> torch.Tensor:
        """``new`` as the value of a store after a write through ``v``. A write under ``no_grad``, or through ``detach()``, leaves the
        history of ``old`` as it is; so the outer levels that keep one write ``new`` into a copy of ``old``, as without functionalize."""
        detached = any(func is aten.detach.default for func, *_ in v._chain)
        if (torch.is_grad_enabled() and not detached) or not _has_history(old):
            return new
        with torch.enable_grad():
            kept = old.clone()
        (kept.detach() if detached else kept).copy_(new)
        return kept

    def own(self, t: torch.Tensor) -> FunctionalValue:
        """A closed-over tensor as a value, so that writes to it are seen by later reads and carried out at the end."""
        if isinstance(t, FunctionalValue) and t._level is self:
            return t
        known = self.closed_over.get(id(t))
        if known is None:
            known = self.closed_over[id(t)] = self.wrap(t)
            self.held.append(t)
        return known

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        op = op_of(func)
        if op.composite:
            with self.mode:
                return func.decompose(*args, **kwargs)
        if op.kind is VIEW:
            return self._view(op, args, kwargs)
        if op.kind is INPLACE or op.fills_argument:
            return self._mutate(op, args, kwargs)
        if op.kind is OUT:
            return self._out(op, args, kwargs)
        if func is aten.native_batch_norm.default:
            return self._batch_norm(args)
        return self._fresh(func(*self._read_all(args), **self._read_kwargs(kwargs)))

    def _fresh(self, out: Any) -> Any:
        if isinstance(out, torch.Tensor):
            return self.wrap(out)
        if isinstance(out, (tuple, list)):
            return (list if isinstance(out, list) else tuple)(map(self._fresh, out))
        return out

    def _read_one(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            if isinstance(a, FunctionalValue) and a._level is self:
                return self.read(a)
            known = self.closed_over.get(id(a))
            return a if known is None else self.read(known)
        return a

    def _read_all(self, args: Any) -> list[Any]:
        return [[self._read_one(b) for b in a] if isinstance(a, (list, tuple)) else self._read_one(a) for a in args]

    def _read_kwargs(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(kwargs, self._read_all(kwargs.values()), strict=True)) if kwargs else kwargs

    def _view_op(self, func: Any) -> Any:
        """The op that gives a view, or its copying form if views are to be removed."""
        return copying_form(func) if self.views else func

    def _view(self, op: Op, args: Any, kwargs: Any) -> Any:
        source = self.own(args[0])
        rest = tuple(args[1:])
        out = self._view_op(op.func)(self.read(source), *rest, **kwargs)
        if isinstance(out, torch.Tensor):
            return self.wrap(out, source._store, (*source._chain, (op.func, rest, kwargs, None)))
        return type(out)(self.wrap(o, source._store, (*source._chain, (op.func, rest, kwargs, i))) for i, o in enumerate(out))

    def _mutate(self, op: Op, args: Any, kwargs: Any) -> Any:
        name = op.base_name
        if name == "detach_":
            return self._detach(self.own(args[0]))
        if name in GEOMETRY and op.functional is not None:
            return self._geometry(op, args, kwargs)
        if name in ("resize_", "set_"):
            raise InplaceError(
                f"{op.func} changes the storage or geometry of a tensor, which functionalize cannot follow; make a new tensor"
            )
        schema = op.func._schema
        written = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
        targets = [args[i] if i < len(args) else kwargs[name] for i, name in written]
        n_own = len(schema.returns) if op.fills_argument else 0  # results beside what is written
        functional = functional_of(op.func)
        if functional is not None:
            results = functional(*self._read_all(args), **_defaults(op, functional, args), **self._read_kwargs(kwargs))
            results = list(results) if isinstance(results, tuple) else [results]
            own, news = results[:n_own], results[n_own:]
        else:
            # no functional form: mutate private copies instead
            news = [_cloned(t) for t in self._read_all(targets)]
            swap = dict(zip(map(id, targets), news, strict=True))
            results = op.func(
                *(swap.get(id(a), r) for a, r in zip(args, self._read_all(args), strict=True)),
                **{k: swap.get(id(a), self._read_one(a)) for k, a in kwargs.items()},
            )
            own = [] if not n_own else list(results) if isinstance(results, tuple) else [results]
        for target, new in zip(targets, news, strict=True):
            self._write_each(target, new)
        returned = self._fresh(own) if own else targets[: len(schema.returns)]
        return None if not returned else returned[0] if len(returned) == 1 else tuple(returned)

    def _detach(self, v: FunctionalValue) -> FunctionalValue:
        if v._chain:
            raise RuntimeError("Can't detach views in-place. Use detach() instead, which leaves the base as it is.")
        v._store.value = self.read(v).detach()
        v._store.generation += 1
        return v

    def _write_each(self, target: Any, new: Any) -> None:
        if isinstance(target, (list, tuple)):
            for t, n in zip(target, new, strict=True):
                self._write_each(t, n)
        elif target is not None:
            self.write(self.own(target), new)

    def _geometry(self, op: Op, args: Any, kwargs: Any) -> Any:
        functional: Any = op.functional
        if not (isinstance(args[0], FunctionalValue) and args[0]._level is self):
            raise InplaceError(f"{op.func} changes the geometry of a tensor that the program closes over; use the out-of-place op")
        return change_geometry(functional.func, args[0], args[1:], kwargs)

    def _out(self, op: Op, args: Any, kwargs: Any) -> Any:
        names = [a.name for a in op.func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        targets = [kwargs[n] for n in names]
        rest = {k: v for k, v in kwargs.items() if k not in names}
        functional = functional_of(op.func)
        if functional is None:
            raise InplaceError(f"{op.func} has no functional form; use the form of the op that returns its result")
        results = functional(*self._read_all(args), **self._read_kwargs(rest))
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        for target, new in zip(targets, results, strict=True):
            if target.shape != new.shape:
                raise InplaceError(f"{op.func}: out= has shape {list(target.shape)}, the result {list(new.shape)}; give it that shape")
            self._write_each(target, new)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _batch_norm(self, args: Any) -> Any:
        """``native_batch_norm`` writes to the running statistics without saying so in its schema."""
        mean, var, training = args[3], args[4], args[5]
        plain = self._read_all(args)
        if not training or mean is None:
            return self._fresh(aten.native_batch_norm.default(*plain))
        *own, new_mean, new_var = aten._native_batch_norm_legit_functional.default(*plain)
        self._write_each(mean, new_mean)
        self._write_each(var, new_var)
        return self._fresh(tuple(own))

    def lower(self, v: Any) -> Any:
        return self._read_one(v)


def _defaults(op: Op, functional: Any, args: Any) -> dict[str, Any]:
    """Defaults that only the in-place form has (``bernoulli_(p=0.5)``)."""
    missing = functional._schema.arguments[len(args) :]
    return {a.name: op.defaults[op.positions[a.name]] for a in missing if not (a.has_default_value() or a.kwarg_only)}


def _has_history(t: Any) -> bool:
    """Whether an outer level that differentiates knows where ``t`` comes from."""
    while isinstance(t, Value) and (t._level.keeps_history or t._level.hidden):
        if t._level.keeps_history and not t._level.is_constant(t):
            return True
        t = t._inner
    return False


def _cloned(x: Any) -> Any:
    return [t.clone() for t in x] if isinstance(x, (list, tuple)) else x.clone()


def functional_of(func: Any) -> Any:
    """The overload that computes what ``func`` writes: same arguments, nothing written; None if ATen has none."""
    if func not in _overloads:
        _overloads[func] = _find_functional(func)
    return _overloads[func]


def _find_functional(func: Any) -> Any:
    namespace, name = func._schema.name.split("::")
    base = f"__{name[3:]}" if name.startswith("__i") else name[:-1] if name.endswith("_") and not name.endswith("__") else name
    wanted = _signature(a for a in func._schema.arguments if not (a.kwarg_only and a.alias_info is not None and a.alias_info.is_write))
    for candidate in (base, f"{base}_functional", f"{name}_functional"):
        packet = getattr(getattr(torch.ops, namespace), candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            other = getattr(packet, overload)
            pure = op_of(other).kind is FUNCTIONAL and not op_of(other).fills_argument
            if pure and _signature(other._schema.arguments) == wanted:
                return other
    return None


def _signature(arguments: Iterable[Any]) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in arguments]


def run_functional(
    f: Callable[..., Sequence[Any]], inputs: Sequence[Any], remove: str = "mutations"
) -> tuple[list[Any], list[tuple[int, torch.Tensor]], list[tuple[torch.Tensor, torch.Tensor]]]:
    """``f`` on functional values of ``inputs``.

    Returns its results one level out; the new values of mutated inputs by their number; (tensor, new value) of mutated closed-over ones.
    """
    level = FunctionalLevel(remove)
    try:
        given = [level.wrap(x) if isinstance(x, torch.Tensor) else x for x in inputs]
        roots = [(v._store, v) if isinstance(x, torch.Tensor) else None for v, x in zip(given, inputs, strict=True)]
        with level.mode:
            outs = f(*given)
        results = [level.lower(o) for o in outs]
        changed = [(i, r[0].value) for i, r in enumerate(roots) if r is not None and r[0].generation]
        outside = [(t, v._store.value) for t, v in zip(level.held, level.closed_over.values(), strict=True) if v._store.generation]
    finally:
        level.close()
    return results, changed, outside


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """``func`` without writes inside, as ``torch.func.functionalize``.

    >>> functionalize(lambda x: x.clone().add_(1))(torch.zeros(2))
    tensor([1., 1.])

    Results and gradients are those of ``func``. Inside, each write becomes the functional op and the views between it and its base;
    ``remove="mutations_and_views"``: the views too become copies. What ``func`` writes to its arguments is written to them at the
    end, by one ``copy_`` each. ``RuntimeError`` for another ``remove``.
    """
    if remove not in ("mutations", "mutations_and_views"):
        raise RuntimeError(
            f"functionalize(f, remove='mutations'): received invalid argument for remove={remove}. 'mutations' leaves no write "
            "in the function, 'mutations_and_views' no view either."
        )

    @wraps(func)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        flat, spec = pytree.tree_flatten((args, kwargs))
        out_spec: Any = None

        def run(*values: Any) -> list[Any]:
            nonlocal out_spec
            a, k = pytree.tree_unflatten(list(values), spec)
            outs, out_spec = pytree.tree_flatten(func(*a, **k))
            return outs

        results, changed, outside = run_functional(run, flat, remove)
        for i, new in changed:
            flat[i].copy_(new)
        for t, new in outside:
            t.copy_(new)
        return pytree.tree_unflatten(results, out_spec)

    return transformed
