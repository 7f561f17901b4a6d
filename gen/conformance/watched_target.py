"""Look at what the members of a target take and return.

The protocol says that `vjp` returns a tuple of outputs and a function from a tuple to a tuple.
While cells run on a :class:`WatchedTarget`, each result is compared with such a description.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gen.targets import protocol
from gen.targets.protocol import Target

__all__ = ["RESULTS", "WatchedTarget", "WrongType", "signature_fault"]


class WrongType(TypeError):
    """A member returned another type than the protocol says."""


Kind = Callable[[str, Any], Any]
"""What looks at a result: where it came from, in words, and the result. It returns the result, or
a function in its place that looks at what it returns later. Raises WrongType."""


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _values(place: str, result: Any) -> Any:
    """Require a tuple of values, which need not be torch's tensors."""
    if not isinstance(result, tuple):
        raise WrongType(f"{place} is a {_type_name(result)}, and the protocol says a tuple")
    return result


def _anything(place: str, result: Any) -> Any:
    return result


def _function(returns: Kind) -> Kind:
    """Return what requires a function that returns this kind."""

    def look(place: str, result: Any) -> Any:
        if not callable(result):
            raise WrongType(f"{place} is a {_type_name(result)}, and the protocol says a function")

        def call(*args: Any, **kwargs: Any) -> Any:
            return returns(f"what {place} returns", result(*args, **kwargs))

        # checks read these of a traced function, and must find them at what stands in its place
        for attribute in ("graph", "shape_env"):
            if hasattr(result, attribute):
                setattr(call, attribute, getattr(result, attribute))
        return call

    return look


def _function_of_tensors(place: str, result: Any) -> Any:
    """Require a function from plain tensors of torch to a tuple of plain tensors."""
    call = _function(_values)(place, result)

    def call_with_tensors(*args: Any) -> Any:
        results = call(*args)
        # Fake tensors give fake tensors, so the types of the arguments are right as well.
        plain = {torch.Tensor, torch.nn.Parameter, *map(type, args)}
        for position, value in enumerate(results):
            if type(value) not in plain:
                raise WrongType(
                    f"element {position} of what {place} returns is a {_type_name(value)}, "
                    "and the protocol says a plain torch.Tensor"
                )
        return results

    return call_with_tensors


def _pair(first: Kind, second: Kind) -> Kind:
    """Return what requires a tuple of two, each of its kind."""

    def look(place: str, result: Any) -> Any:
        if not isinstance(result, tuple) or len(result) != 2:
            raise WrongType(f"{place} is a {_type_name(result)}, and the protocol says a pair")
        return (
            first(f"the first part of {place}", result[0]),
            second(f"the second part of {place}", result[1]),
        )

    return look


def _blocks(depth: int) -> Kind:
    """Return what requires tuples of tuples of values, so deep: 2 for a Jacobian."""

    def look(place: str, result: Any) -> Any:
        if depth == 0:
            return result
        look_at_part = _blocks(depth - 1)
        parts = _values(place, result)
        return tuple(look_at_part(f"a part of {place}", part) for part in parts)

    return look


def _graph_function(place: str, result: Any) -> Any:
    """Require a function with the graph that it replays."""
    graph = getattr(result, "graph", None)
    if not isinstance(graph, torch.fx.Graph):
        raise WrongType(f"{place} has no attribute `graph` that is a torch.fx.Graph")
    return _function(_values)(place, result)


RESULTS: dict[str, Kind] = {
    "forward": _function_of_tensors,
    "pipeline": _function_of_tensors,
    "vjp": _pair(_values, _function(_values)),
    "backward": _pair(_values, _function(_values)),
    "jvp": _pair(_values, _values),
    "dual": _pair(_values, _values),
    "linearize": _pair(_values, _function(_values)),
    "vmap": _function(_values),
    "grad": _function(_values),
    "jacrev": _function(_blocks(2)),
    "jacfwd": _function(_blocks(2)),
    "hessian": _function(_blocks(3)),
    "functionalize": _function(_values),
    "trace": _graph_function,
    "joint": _function(_pair(_values, _values)),
    "compiled": _function(_values),
    "export": _function(_values),
    "saved": _function(_values),
    "jit": _function(_anything),
    "per_sample": _values,
    "per_sample_answer": _values,
    "training": _values,
    "checkpoint": _pair(_values, _values),
    "session": _pair(_values, _values),
    "functional": _values,
    "overload": _function(_anything),
    "part": _function(_anything),
    "flat": _values,
}
"""The members of a target, and what each returns by the protocol."""


class WatchedTarget:
    """A target whose members are looked at when they are called."""

    def __init__(self, target: Target) -> None:
        self.watched = target
        self.calls: Counter[str] = Counter()
        """How often each member was called."""

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.watched, name)
        # such as `name` and `lacks`, and what the protocol says nothing of
        if name not in RESULTS:
            return member
        return partial(self._call, name, member)

    def _call(self, name: str, member: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        return RESULTS[name](f"the result of `{name}`", member(*args, **kwargs))


# --- signatures -----------------------------------------------------------------------------------


def signature_fault(target: Target, word_protocol: str, name: str) -> str:
    """Return why a member cannot be called as the protocol calls it. Empty if it can.

    `word_protocol`: the class of :mod:`gen.targets.protocol` that declares the member.
    """
    declared = inspect.signature(getattr(getattr(protocol, word_protocol), name))
    try:
        own = inspect.signature(getattr(target, name))
    except (TypeError, ValueError):  # a builtin says nothing of its parameters
        return ""
    args, kwargs = _call_of(declared)
    try:
        own.bind(*args, **kwargs)
    except TypeError as error:
        shown = ", ".join([*args, *(f"{key}=…" for key in kwargs)])
        return f"its signature is {name}{own}, and it is called as {name}({shown}): {error}"
    return ""


def _call_of(declared: inspect.Signature) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of a call by the protocol, each in place of itself by its name."""
    args: list[str] = []
    kwargs: dict[str, str] = {}
    for parameter in list(declared.parameters.values())[1:]:  # without self
        if parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = parameter.name
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += [f"{parameter.name}[0]", f"{parameter.name}[1]"]
        else:
            args.append(parameter.name)
    return args, kwargs
