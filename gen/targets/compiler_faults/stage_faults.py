"""Mistakes in what Dynamo and AOTAutograd do around a graph: a guard is not asked, an alias is a
copy, a write to an object of Python's is lost.

    stage = STAGES["aliases"]
    with stage.replaced(stage.faults["copied"]):
        …                           # results that should share memory with an argument are copies

A stage is a function of torch's. A fault gets that function and returns the one to take instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gen.torch_private.compiler_stages import (
    CellsOfDynamo,
    DictionariesOfDynamo,
    Effects,
    Guards,
    ListsOfDynamo,
    calls_around_graphs,
    collection_of_facts,
    compilation_of_frames,
    values_saved_for_backward,
)

__all__ = ["RECOMPILES", "STAGES", "Stage"]

Function = Callable[..., Any]
Fault = Callable[[Function], Function]


@dataclass(frozen=True)
class Stage:
    """A function of torch's compilers, and the mistakes that can be made in it."""

    # A key of :data:`gen.targets.faults.KINDS`.
    part: str
    # Torch looks the function up as this attribute of the owner.
    owner: Any
    attribute: str
    # by kind the function that makes a mistaken one of the original
    faults: Mapping[str, Fault]
    # Tells by the arguments and the result of a call which mistakes would change anything. None if
    # all may.
    shows: Callable[[Sequence[Any], Any], set[str]] | None = None
    # Whether the function returns another one, whose results are meant.
    of_function: bool = False

    @contextmanager
    def replaced(self, fault: Fault) -> Iterator[None]:
        """Let torch take the function that ``fault`` makes of its own."""
        original: Function = getattr(self.owner, self.attribute)
        setattr(self.owner, self.attribute, fault(original))
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, original)

    def observed(self, note: Callable[[set[str]], None]) -> Fault:
        """Return what makes a function that tells ``note`` which mistakes would show."""

        def observe(function: Function) -> Function:
            @functools.wraps(function)
            def seen(*args: object, **options: object) -> object:
                result = function(*args, **options)
                kinds = set(self.faults)
                if self.shows is not None:
                    kinds = self.shows(args, result)
                note(kinds)
                return result

            return seen

        if self.of_function:
            return _of_result(observe)
        return observe


# --- results of AOTAutograd ----------------------------------------------------------------------


def _changes_result(change: Callable[[Any], Any]) -> Fault:
    """Return the fault that changes what a function returns."""

    def fault(function: Function) -> Function:
        @functools.wraps(function)
        def faulty(*args: object, **options: object) -> object:
            return change(function(*args, **options))

        return faulty

    return fault


def _of_result(fault: Fault) -> Fault:
    """Return the fault that makes a mistake in the function that a function returns."""
    return _changes_result(fault)


def _takes_apart(function: Function) -> Function:
    """Treat arguments that share memory as tensors with memory of their own."""

    @functools.wraps(function)
    def faulty(
        _: object, inputs: Sequence[object], names: Sequence[object], *__: object, **___: object
    ) -> object:
        return inputs, names or [None] * len(inputs), None

    return faulty


def _is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)


def _does_nothing(function: Function) -> Function:
    """Leave the step out."""

    @functools.wraps(function)
    def faulty(*_: object, **__: object) -> None:
        return None

    return faulty


def _exchanges_saved(function: Function) -> Function:
    """Save the last two results of the graph in the other order, where they are of one shape."""

    @functools.wraps(function)
    def faulty(state: Any, context: object, results: Sequence[object]) -> object:
        if _has_two_saved(state, results):
            *others, a, b = results
            results = (*others, b, a)
        return function(state, context, results)

    return faulty


def _has_two_saved(state: Any, results: Sequence[Any]) -> bool:
    """Return whether the last two results are saved tensors of one shape and dtype."""
    if len(results) < 2 + state.metadata.num_forward_returns:
        return False
    a, b = results[-2:]
    both = _is_tensor(a) and _is_tensor(b)
    return bool(both and a.shape == b.shape and a.dtype == b.dtype)


# --- what AOTAutograd has found out --------------------------------------------------------------


def _changes_facts(group: str, changes: Mapping[str, object], of: Callable[[Any], bool]) -> Fault:
    """Return the fault that gives the facts of arguments or results other values. ``of``: which
    arguments or results."""

    def change(metadata: Any) -> Any:
        for facts in filter(of, getattr(metadata, group)):
            for name, value in changes.items():
                object.__setattr__(facts, name, value)  # their dataclass is frozen
        # It derives further facts from these.
        metadata.__post_init__()
        return metadata

    return _of_result(_changes_result(change))


METADATA: dict[str, tuple[str, Mapping[str, object], Callable[[Any], bool]]] = {
    "constant": (
        "output_info",
        {"requires_grad": False, "requires_grad_for_backward": False},
        lambda output: output.requires_grad,
    ),
    "write": ("input_info", {"mutates_data": False}, lambda argument: argument.mutates_data),
    "hidden": (
        "input_info",
        {"mutations_hidden_from_autograd": True},
        lambda argument: argument.mutates_data and not argument.mutations_hidden_from_autograd,
    ),
    "untracked": (
        "input_info",
        {"mutations_under_no_grad_or_inference_mode": True},
        lambda argument: (
            argument.mutates_data and not argument.mutations_under_no_grad_or_inference_mode
        ),
    ),
}
"""Facts that are wrong: of arguments or results, the values that they get, and for which ones."""


def _facts_that_show(_: object, metadata: Any) -> set[str]:
    """Return which facts of :data:`METADATA` a program has."""
    return {
        kind for kind, (group, _, of) in METADATA.items() if any(map(of, getattr(metadata, group)))
    }


# --- Dynamo --------------------------------------------------------------------------------------

EFFECTS: dict[str, Callable[[Any], bool]] = {
    "list": lambda variable: isinstance(variable, ListsOfDynamo),
    "dictionary": lambda variable: isinstance(variable, DictionariesOfDynamo),
    "cell": lambda variable: isinstance(variable, CellsOfDynamo),
    "object": lambda variable: (
        not isinstance(variable, (ListsOfDynamo, DictionariesOfDynamo, CellsOfDynamo))
    ),
}
"""Changes of Python's objects that are lost, by the kind of object."""


def _loses(of: Callable[[Any], bool]) -> Fault:
    """Return the fault that forgets which objects of a kind a program has changed."""
    return _changes_result(lambda variables: [each for each in variables if not of(each)])


def _effects_that_show(_: object, variables: Any) -> set[str]:
    """Return of which kinds the changed objects are."""
    return {kind for kind, of in EFFECTS.items() if any(map(of, variables))}


def _kinds(shows: bool, kind: str) -> set[str]:
    """Return ``kind`` alone, or nothing if it does not show."""
    if shows:
        return {kind}
    return set()


def _counts_writes(kept: bool, metadata: Any) -> bool:
    """Return whether a program writes to an argument in its graph, so that autograd counts it."""
    return bool(kept and metadata.mutated_graph_handled_indices_seen_by_autograd)


STAGES: dict[str, Stage] = {
    "aliases": Stage(
        "alias",
        calls_around_graphs,
        "gen_alias_from_base",
        {
            "copied": _changes_result(lambda alias: alias.clone()),
            "detached": _changes_result(lambda alias: alias.detach()),
        },
    ),
    "shared_arguments": Stage(
        "arguments",
        calls_around_graphs,
        "merge_view_inputs",
        {"separate": _takes_apart},
        lambda _, result: _kinds(result[2] is not None, "separate"),
    ),
    "versions": Stage(
        "arguments",
        calls_around_graphs,
        "_codegen_increment_mutation_versions",
        {"unadvanced": _does_nothing},
        lambda arguments, _: _kinds(_counts_writes(*arguments[2:]), "unadvanced"),
    ),
    "saved_values": Stage(
        "saved_values",
        values_saved_for_backward,
        "save_from_forward",
        {"exchanged": _exchanges_saved},
        lambda arguments, _: _kinds(_has_two_saved(arguments[0], arguments[2]), "exchanged"),
    ),
    "facts": Stage(
        "facts",
        collection_of_facts,
        "run_functionalized_fw_and_collect_metadata",
        {kind: _changes_facts(*fact) for kind, fact in METADATA.items()},
        _facts_that_show,
        of_function=True,
    ),
    "hooks": Stage(
        "effect",
        Effects,
        "codegen_hooks",
        {"hook": _does_nothing},
        lambda arguments, _: _kinds(bool(arguments[0].tensor_hooks), "hook"),
    ),
    "effects": Stage(
        "effect",
        Effects,
        "_get_modified_vars",
        {kind: _loses(of) for kind, of in EFFECTS.items()},
        _effects_that_show,
    ),
    **{
        name: Stage("guard", Guards, name, {"unasked": _does_nothing})
        for name in vars(Guards)
        if name.isupper()
    },
}
"""The stages by name, which has no spaces: it is a word of a rule's."""

RECOMPILES = Stage("guard", compilation_of_frames, "get_and_maybe_log_recompilation_reasons", {})
"""What runs where no program of a function is for a call."""
