"""Define the axes of a cell: what varies in a check in addition to the op and the dtype.

A check with ``over: {shapes: [static, dynamic], partition: [default, min_cut]}`` has cells such as
``torch.sin-float64-dynamic-min_cut``: the words of the axes stand in an id in the order of `over`.
A generated module writes the same cell as ``float64:dynamic:min_cut``.

The axis `run` comes last, and its word ``plain`` is left out: ``torch.sin-float64`` is the cell of
``run: plain``, ``torch.sin-float64-jitted`` its other form.

A new axis is a field of :class:`Axes`. A new word stands in the type of its axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

__all__ = ["AXES", "DEGENERATE", "OF_ARGUMENTS", "USUAL", "Axes", "complete"]

RUN = "run"
PLAIN = "plain"

Form = Literal[
    "functional", "out", "out_view", "out_small", "out_overlapping", "out_of_input", "out_lazy",
    "inplace", "inplace_overlapping", "inplace_of_input",
    "view_inplace", "argument_inplace", "data_write", "tensor_number", "reloaded",
    "autocast", "autocast_half", "autocast_near",
]  # fmt: skip
Layout = Literal[
    "contiguous", "transposed", "channels_last", "noncontiguous", "expanded", "conjugated",
    "negated",
]  # fmt: skip
Degenerate = Literal[
    "tails", "huge", "tiny", "subnormal", "mixed", "edges", "verge", "offset", "dominant",
    "largest", "impossible", "ties", "zero_factor", "one_nan", "one_inf", "masked_row",
    "equal_singular_values", "unit_triangular", "far_from_identity", "smaller_index",
    "repeated_index", "empty_index",
]  # fmt: skip
OfArguments = Literal[
    "labels", "indices", "masks", "certain", "ends", "widths", "each_place", "empty_dims",
]  # fmt: skip
Numbers = Literal[
    "ordinary", "extreme", "ill_formed", "out_of_range", "no_index", "wrong_call", "wrong_number",
    "neighbours", "wrong_arguments", "special", "overloads", Degenerate, OfArguments,
]  # fmt: skip
Answer = Literal["norms", "clipped_sum", "dot", "gram", "project"]
Cotangents = Literal["contiguous", "transposed", "noncontiguous", "expanded"]
Batch = Literal["ordinary", "out_dims", "negative", "empty", "mistaken"]
Mode = Literal["dispatch_mode", "function_mode", "inference_mode", "no_grad"]
Reach = Literal["value", "outside", "view", "parameter"]
OptimizerName = Literal[
    "sgd", "momentum", "nesterov", "momentum_foreach", "adam", "adam_foreach", "adam_fused",
    "adamw", "amsgrad", "adamax", "nadam", "radam", "adagrad", "adadelta", "rmsprop", "rprop",
    "asgd",
]  # fmt: skip
StepKind = Literal[
    "plain", "clipped", "accumulated", "carried", "zeroed", "scheduled", "assigned", "scaled",
    "groups", "grown", "two_optimizers", "loaded", "frozen", "thawed", "hooked", "penalized",
    "closure", "stateful", "totalled", "drawn", "resized", "by_hand", "donated",
]  # fmt: skip
Trains = Literal["eagerly", "jitted", "jitted_in_session"]
Moment = Literal[
    "between", "between_often", "between_kinds", "in_thread", "by_other_program", "inside_before",
    "inside_after", "helper_before", "helper_after", "once", "on_flag", "twice", "in_finally",
    "in_context", "in_layer_hook", "in_backward", "in_tensor_hook", "in_finalizer",
    "inside_and_between", "read_by_hook", "read_by_hook_later", "read_by_function",
    "read_by_function_later",
]  # fmt: skip
Again = Literal[
    "again", "sizes", "one", "single", "grad", "no_grad", "strides", "types", "inference",
    "options", "frozen", "stepped", "moved", "evaluated", "sharing", "repeated", "written",
    "hooked", "unhooked", "replaced", "attributes", "forwarded", "rebound", "default_dtype",
]  # fmt: skip
Made = Literal[
    # nested tensors
    "of_list", "of_offsets", "of_lengths", "narrowed", "transposed", "of_strided", "chunked",
    "joined",
    # masks
    "all_shown", "none_shown", "some_shown", "row_hidden", "one_shown",
    # lists of tensors
    "alike", "of_other_shapes", "with_gaps", "empty", "one",
    # sparse layouts
    "coo", "uncoalesced", "hybrid", "csr", "csc", "bsr", "bsc",
    # implementations of an optimizer
    "for_loop", "foreach", "fused", "differentiable",
    # modules
    "evaluated", "without_grad", "in_inference", "trained",
    # where special numbers stand in a line
    "ordinary", "nan_first", "nan_last", "nan_inside", "nan_often", "all_nan", "infinities",
    "nan_and_infinities", "zeros", "all_equal", "ends_of_dtype",
    # what is asked of a law of random numbers
    "densities", "probabilities", "quantiles", "no_quantiles", "beyond", "certain", "moments",
    "modes", "entropies", "batches", "outside", "draws", "draw_slopes", "divergences",
    # dtypes of quantized numbers
    "quint8", "qint8", "qint32",
    # copies
    "shallow_copy", "deep_copy", "pickled", "saved", "saved_as_weights", "saved_in_old_format",
    "state_loaded", "state_assigned",
    # what happens between the steps of a schedule
    "stepped", "reloaded", "resumed", "in_a_sequence",
    # subclasses
    "wrapped", "wrapped_twice", "by_function", "overridden", "parameter",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axes:
    """The word of a cell on each axis.

    An axis that the check neither varies nor fixes has its default. The default is None where no
    word means "nothing special". `docs/matrix.md` says what each word does.
    """

    form: Form = "functional"
    """How the op is called, and where its result goes."""
    layout: Layout = "contiguous"
    """How the inputs lie in memory."""
    values: Numbers = "ordinary"
    """Which numbers the inputs have."""
    shapes: Literal["static", "dynamic"] = "static"
    partition: Literal["default", "min_cut", "budget"] = "default"
    by: Literal["aot", "jit"] = "aot"
    """The compiler for the parts of an op."""
    cuts: Literal["searched", "loaded"] = "searched"
    """The source of the partitions: a search, or a file."""
    loss_reduction: Literal["sum", "mean"] = "sum"
    input_grad: Literal["with_input_grad", "without_input_grad"] = "without_input_grad"
    of: Answer | None = None
    """The quantity to compute from per-sample gradients. None: the gradients themselves."""
    cotangents: Cotangents = "contiguous"
    """The memory layout of the cotangents that the backward pass passes to the op."""
    run_on: Literal["batch", "sample"] = "batch"
    """Whether the target calls the op on the whole batch or on one sample, for an answer."""
    reentrant: Literal["reentrant", "not_reentrant"] = "not_reentrant"
    """The kind of a checkpoint."""
    batch: Batch = "ordinary"
    under: Mode | None = None
    """The mode of torch around the program."""
    reach: Reach | None = None
    """The kind of memory that a program reads or writes."""
    refusal: Literal["named"] | None = None
    """``named``: an error that names a line of the program is right, too."""
    optimizer: OptimizerName = "sgd"
    step: StepKind = "plain"
    trains: Trains = "eagerly"
    """The way in which the steps of training run."""
    moment: Moment | None = None
    """The moment at which a program's state in Python changes."""
    again: Again | None = None
    """The difference between the first call of a random program and a later one."""
    made: Made | None = None
    """The construction of a program's values: selects samples with this argument ``made``."""
    run: Literal["plain", "jitted"] = "plain"
    varied: tuple[str, ...] = ()
    """The axes that the check varies, in the order of the words of its ids."""

    @classmethod
    def varying(cls, words: Mapping[str, str]) -> Axes:
        """Return the axes of a cell whose check varies the axes of `words`, in their order.

        Raises ValueError if an axis or a word is unknown.
        """
        return _varying(tuple(words), tuple(words.values()))

    def fixed(self, *, form: str, layout: str, values: str) -> Axes:
        """Return these axes with the words that the check fixes. An axis that varies keeps its own.

        Raises ValueError if a word is unknown.
        """
        words = {"form": form, "layout": layout, "values": values}
        fixed = {axis: word for axis, word in words.items() if axis not in self.varied}
        return replace(self, **_validate(fixed))

    def by_name(self) -> dict[str, str]:
        """Map each axis that varies to its word."""
        return {name: getattr(self, name) for name in self.varied}

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of the axes that vary, with ``plain`` if it is one of them."""
        return tuple(getattr(self, name) for name in self.varied)

    @property
    def spoken(self) -> tuple[str, ...]:
        """Return the words as ids and generated modules write them: without ``plain``."""
        if self.varied[-1:] == (RUN,) and not self.jitted:
            return self.words[:-1]
        return self.words

    @property
    def dynamic(self) -> bool:
        return self.shapes == "dynamic"

    @property
    def is_plain_call(self) -> bool:
        """Return whether the op is called as it is, on contiguous inputs with ordinary numbers."""
        return all(getattr(self, axis) == getattr(USUAL, axis) for axis in FIXED)

    @property
    def jitted(self) -> bool:
        return self.run == "jitted"


def complete(spoken: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Add ``plain`` to the words of an id, if that is the only word that `names` lacks.

    Any other difference in number stays. The caller says what is wrong with it.
    """
    ends_with_run = bool(names) and names[-1] == RUN
    if ends_with_run and len(spoken) == len(names) - 1:
        return (*spoken, PLAIN)
    return tuple(spoken)


# A matrix has hundreds of thousands of cells, but only some hundreds of different axes.
@cache
def _varying(names: tuple[str, ...], words: tuple[str, ...]) -> Axes:
    return Axes(**_validate(dict(zip(names, words, strict=True))), varied=names)


def _validate(words: Mapping[str, str]) -> dict[str, Any]:
    """Return `words` as the fields of :class:`Axes` take them."""
    for name, word in words.items():
        if name not in AXES:
            raise ValueError(f"no axis {name!r}; known: {', '.join(AXES)}")
        if word not in AXES[name]:
            raise ValueError(f"no word {word!r} of axis {name}; known: {', '.join(AXES[name])}")
    return dict(words)


def _words_by_axis() -> dict[str, tuple[str, ...]]:
    types = get_type_hints(Axes)
    names = [axis.name for axis in fields(Axes) if axis.name != "varied"]
    return {name: _words_of(types[name]) for name in names}


def _words_of(annotation: object) -> tuple[str, ...]:
    """Return the words of ``Literal["a", "b"]`` or ``Literal["a", "b"] | None``."""
    members = get_args(annotation)
    if NoneType not in members:
        return members
    (literal,) = (member for member in members if member is not NoneType)
    return get_args(literal)


USUAL = Axes()
"""The axes of a check that neither varies nor fixes any."""
FIXED = ("form", "layout", "values")
"""The axes that a check may fix."""
AXES = _words_by_axis()
"""The words of each axis."""
DEGENERATE: tuple[str, ...] = get_args(Degenerate)
OF_ARGUMENTS: tuple[str, ...] = get_args(OfArguments)
"""The words of `values` that choose points by the kind of an argument."""
