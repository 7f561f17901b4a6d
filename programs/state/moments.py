"""When a value changes, and which calls a program gets.

    between:   call, call, alteration, call, call, alteration, call, call

``calls`` has a letter for each step of the caller:

| | |
|---|---|
| ``c`` | a call |
| ``o`` | a call with an argument of another size |
| ``f`` | a call with a flag |
| ``a`` | an alteration |
| ``t`` | an alteration in another thread |
| ``j`` | an alteration by another jitted program |
| ``g`` | a call, and the backward pass of its result |
| ``l`` | a call, an alteration, and then the pass |
"""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """Text of one moment. ``before``, ``after``: statements of the program around its result.
    ``$alter``: those of the alteration itself. ``$declare``: what they need to be told first.
    ``result``: statements that give the program's result, which in the backward pass is $result of
    the gradient ``x``; where there are none, $result is that of the program."""

    calls: str
    setup: str = ""
    before: str = ""
    after: str = ""
    result: str = ""


_MANY = "cccccccccc"  # more than a jitted function has states before it refuses
_BACKWARD = """
class Altering(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        alter()
        return g * 2
"""
_GRADIENT = "leaf = x.detach().requires_grad_()\nresult = result + torch.autograd.grad({}, leaf)[0]"
_HOOKED = "HOOKED = nn.Identity()\nHOOKED.register_forward_hook(lambda m, args, y: alter())"
_AROUND = """
@contextlib.contextmanager
def altering():
    try:
        yield
    finally:
        alter()
"""

MOMENTS: dict[str, Moment] = {
    "between": Moment("ccaccacc"),
    "between_often": Moment("cacacacac"),
    "between_kinds": Moment("cocoacoacoco"),
    "in_thread": Moment("cctcctcc"),
    "by_other_program": Moment("ccjccjcc"),
    "inside_before": Moment(_MANY, before="$alter"),
    "inside_after": Moment(_MANY, after="$alter"),
    "helper_before": Moment(_MANY, before="alter()"),
    "helper_after": Moment(_MANY, after="alter()"),
    "once": Moment("cccccc", "DONE = []", after="if not DONE:\n    DONE.append(1)\n    alter()"),
    "on_flag": Moment("ccfccfcc", before="if flag:\n    alter()"),
    "twice": Moment("cccccc", before="alter()", after="alter()"),
    "in_finally": Moment(_MANY, before="try:\n    x = x + 1\nfinally:\n    alter()"),
    "in_context": Moment(_MANY, _AROUND, after="with altering():\n    result = result + 1"),
    "in_layer_hook": Moment(_MANY, _HOOKED, before="HOOKED(x)"),
    "in_backward": Moment(_MANY, _BACKWARD, after=_GRADIENT.format("Altering.apply(leaf).sum()")),
    "in_tensor_hook": Moment(
        _MANY,
        "def hooked(x):\n    y = x * 2\n    y.register_hook(lambda g: alter())\n    return y",
        after=_GRADIENT.format("hooked(leaf).sum()"),
    ),
    "in_finalizer": Moment(
        _MANY,
        "class Dropped:\n    def __del__(self):\n        try:\n            alter()\n"
        "        except ABSENT:\n            pass",
        before="Dropped()",
    ),
    "inside_and_between": Moment("ccaccacca", after="$alter"),
}

_BY_HOOK = """
def hook(x):
    $declare
    return $result
y = x * 1
y.register_hook(hook)
result = y * 1"""
_BY_FUNCTION = """
class Reading(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, x):
        $declare
        return $result
result = Reading.apply(x) * 1"""

PASSES: dict[str, Moment] = {
    "read_by_hook": Moment("ggaggagagg", result=_BY_HOOK),
    "read_by_hook_later": Moment("gglglalg", result=_BY_HOOK),
    "read_by_function": Moment("ggaggagagg", result=_BY_FUNCTION),
    "read_by_function_later": Moment("gglglalg", result=_BY_FUNCTION),
}
"""Moments of programs that come to their value in the backward pass of their result."""
