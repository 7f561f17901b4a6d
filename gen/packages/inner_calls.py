"""Learn how a package calls its private Functions: from a call of a public function.

    inner_calls(call, ["mypackage.ops._Sort"])
    # {"mypackage.ops._Sort": {"args": [{"shape": [4, 3]}, -1]}}

A guess of arguments of a private Function often means nothing, and its callers know better.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from gen.packages.sampled_calls import Call
from gen.recording.described import NoDescriptionError, describe_call
from gen.recording.hook import Sample

__all__ = ["inner_calls"]


def inner_calls(call: Call, functions: Mapping[str, Any]) -> dict[str, Sample]:
    """Run a call, and return a sample of the first call of each Function that it reaches.

    ``functions``: the Functions to watch, by name.
    """
    arguments = call.arguments()
    outer = {
        id(argument): described
        for argument, described in zip(arguments, call.described, strict=True)
        if isinstance(argument, torch.Tensor)
    }
    noted: dict[str, Sample] = {}

    def note(name: str, values: Sequence[Any]) -> None:
        with contextlib.suppress(NoDescriptionError):
            noted.setdefault(name, _sample(values, outer))

    with contextlib.ExitStack() as watched:
        for name, function in functions.items():
            watched.enter_context(_watched(name, function, note))
        call.results(arguments)
    return noted


def _sample(values: Sequence[Any], outer: Mapping[int, Any]) -> Sample:
    """Return the sample of a call. An argument of the outer call is described as it is there."""
    sample = describe_call(values, {})
    sample["args"] = [
        outer.get(id(value), described)
        for value, described in zip(values, sample["args"], strict=True)
    ]
    return sample


@contextlib.contextmanager
def _watched(
    name: str, function: Any, note: Callable[[str, Sequence[Any]], None]
) -> Iterator[None]:
    """Note each call of a Function inside the block.

    A package may have taken ``apply`` from the class before, so ``forward`` is what is watched.
    """
    forward = vars(function).get("forward")
    if forward is None:  # it inherits that of another one
        yield
        return
    run = function.forward
    begin = int(function.setup_context is torch.autograd.Function.setup_context)  # after ctx

    def noting(*args: Any, **kwargs: Any) -> Any:
        note(name, args[begin:])
        return run(*args, **kwargs)

    function.forward = staticmethod(noting)
    try:
        yield
    finally:
        function.forward = forward
