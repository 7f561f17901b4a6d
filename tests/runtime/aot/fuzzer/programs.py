"""Random programs and calls of them, as Python text that follows from a seed.

    case = random_case(7)
    print(case)             # the program, the arguments of its calls, and what is done
                            # with the results
    case.shrunk(differs)    # without the statements that ``differs`` does not need

A statement is tried on torch's tensors as it is drawn. One that raises is left out, so most
of a program runs.
"""

from __future__ import annotations

import contextlib  # noqa: F401
import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .observations import arguments_of, observed
from .statements import KINDS, REGIONS
from .surroundings import TORCH, Surroundings

SHAPES = (
    (2, 3),
    (2, 3),
    (2, 3),
    (3, 3),
    (2, 2),
    (3,),
    (2,),
    (),
    (1, 3),
    (2, 2, 3),
    (4, 3),
    (2, 2, 2, 3),
)
EMPTY = ((0, 3), (2, 0), (0,))
DTYPES = ("float32",) * 16 + (
    "float64",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
    "complex128",
)
LAYOUTS = ("plain",) * 8 + (
    "transposed",
    "strided",
    "expanded",
    "row",
    "channels",
    "channels",
    "overlapping",
    "conjugate",
)
ERRORS = (RuntimeError, TypeError, IndexError, ValueError, NameError)
"""What torch raises for a program or an argument that makes no sense."""
FLOATING = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")


@dataclass(frozen=True)
class Step:
    """One statement, and the block that it stands in, if any."""

    text: str
    region: str = ""

    def __str__(self) -> str:
        lines = self.text.split("\n")
        return (
            "\n".join([self.region, *(f"    {line}" for line in lines)])
            if self.region
            else self.text
        )


@dataclass(frozen=True)
class CallText:
    """One call: statements that make the arguments, the arguments, and what surrounds the
    call and follows it.

    ``grad``: the grad mode of the call. ``training``: of the modules. ``hooks``: on saved tensors.
    ``around``: another mode, as source. ``after``: what is done with the results, see
    :mod:`.observations`. ``picks``: which tensors that concerns.
    """

    lines: tuple[str, ...]
    args: str
    grad: bool
    training: bool
    hooks: bool
    after: tuple[str, ...]
    picks: tuple[float, ...]
    around: str = ""

    def __str__(self) -> str:
        around = f"with torch.set_grad_enabled({self.grad})" + (
            ", saved_tensors_hooks" if self.hooks else ""
        )
        around += f", {self.around}" if self.around else ""
        return "\n".join(
            [
                "",
                *self.lines,
                f"{around}:  # training={self.training}",
                f"    f({self.args})",
                f"# then {self.after} {self.picks}",
            ]
        )


@dataclass(frozen=True)
class Case:
    """A program with its calls. ``str(case)`` is its source.

    ``form``: of what it returns. ``partition``: "default", "min cut" or "budget". ``nested``:
    whether the compiled function is called by another compiled function.
    """

    seed: int
    parameters: str
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    form: str
    calls: tuple[CallText, ...]
    dynamic: bool = False
    partition: str = "default"
    nested: bool = False

    @property
    def program(self) -> str:
        body = [line for step in self.steps for line in str(step).split("\n")]
        return "\n".join(
            [
                f"def f({self.parameters}):",
                *(f"    {line}" for line in (*body, f"return {self.returned}")),
            ]
        )

    @property
    def returned(self) -> str:
        inside = ", ".join(self.results)
        if self.form == "single":
            return self.results[0]
        if self.form == "dict":
            return "{" + ", ".join(f"'k{i}': {r}" for i, r in enumerate(self.results)) + "}"
        if self.form == "nested":
            return (
                f"({self.results[0]}, [{', '.join(self.results[1:])}], "
                "{'none': None, 'number': 2})"
            )
        if self.form == "named":
            return f"Pair({self.results[0]}, [{inside}])"
        if self.form == "sizes":
            return f"({inside}, {self.results[0]}.numel(), tuple({self.results[-1]}.shape), s)"
        return f"({inside},)" if self.form == "tuple" else f"[{inside}, None]"

    def __str__(self) -> str:
        how = (
            f"# seed {self.seed}, dynamic={self.dynamic}, "
            f"{self.partition} partition{', compiled twice' if self.nested else ''}"
        )
        return "\n".join([how, self.program, *map(str, self.calls)])

    def shrunk(self, fails: Callable[[Case], bool]) -> Case:
        """A part of the case for which ``fails`` still holds: no call, statement or result of it
        can be left out."""
        case, again = self, True
        while again:
            again = False
            for field in ("calls", "steps", "results"):
                i = len(getattr(case, field)) - 1
                while i >= 0:
                    items = getattr(case, field)
                    if len(items) > (field != "steps"):
                        changes: dict[str, Any] = {field: (*items[:i], *items[i + 1 :])}
                        smaller = dataclasses.replace(case, **changes)
                        if fails(smaller):
                            case, again = smaller, True
                    i -= 1
        return case


@dataclass(frozen=True)
class _Given:
    """How one tensor among the arguments of a call is made."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    requires: bool
    leaf: bool
    alias: str = ""  # a view of the tensor before instead

    def lines(self, i: int, shift: int) -> list[str]:
        if self.alias:
            return [f"x{i} = " + self.alias.replace("$", f"h{i - 1}"), f"h{i} = h{i - 1}"]
        shape, view = self._stored()
        requires_grad = ", requires_grad=True" if self.requires else ""
        made = f"leaf({i + shift}, {shape}, torch.{self.dtype}{requires_grad})"
        inner = f"h{i} = b{i}"
        # A product of booleans is no boolean.
        if not self.leaf:
            inner += " * 1" if self.dtype != "bool" else ".clone()"
        return [f"b{i} = {made}", inner, f"x{i} = h{i}{view}"]

    def _stored(self) -> tuple[tuple[int, ...], str]:
        """Return the shape of the stored tensor, and the text of the view that an argument is."""
        shape, n_dims = self.shape, len(self.shape)
        match self.layout:
            case "transposed" if n_dims == 2:
                return shape[::-1], ".t()"
            case "strided" if shape:
                return (*shape[:-1], 2 * shape[-1]), "[..., ::2]"
            case "expanded" if shape:
                return (1, *shape[1:]), f".expand({', '.join(map(str, shape))})"
            case "row":
                return (2, *shape), "[1]"
            case "channels" if n_dims > 2:
                first, channels, *rest = shape
                return (first, *rest, channels), ".movedim(-1, 1)"
            case "overlapping" if n_dims == 2 and shape[-1]:
                rows, size = shape
                return (rows + size - 1,), f".unfold(0, {size}, 1)"
            case "conjugate" if self.dtype.startswith("complex"):
                return shape, ".conj()"
        return shape, ""


ALIASES = (
    "$",
    "$",
    "$[:1]",
    "$[..., 1:]",
    "$.detach()",
    "$.view(-1)",
    "$.t()",
    "$[-1]",
    "$.view_as($)",
    "$.data",
    "$[::2]",
)
AFTER = (
    *(
        ("gradients",),
        ("gradients", "write"),
        ("second",),
        ("write",),
        ("recorded write", "gradients"),
        ("gradients", "write", "write"),
    ),
    *(
        ("second",),
        ("third",),
        ("twice",),
        ("some", "write"),
        ("between",),
        ("accumulated",),
        ("turned",),
    ),
)
CHANGES = (
    *("values",) * 3,
    "shape",
    "shape",
    "layout",
    "flags",
    "number",
    "grad",
    "training",
    "alias",
    "around",
)
FACTS = (
    *("values", "values", "values", "shape", "shape", "layout", "flags", "number"),
    *("grad", "training", "alias", "around"),
)
"""Facts of a call that the next one may change. All of its values are always others."""
AROUND = ("torch.inference_mode()", "torch.autocast('cpu', torch.bfloat16)")


class _Calls:
    """The calls of one program: the first one, and others that differ from it in some respect."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.number = rnd.choice((1, 2, 2, 3))
        self.extra = rnd.choice(("", "", "none", "dict", "list"))
        shape, dtype = rnd.choice(SHAPES), rnd.choice(DTYPES)
        self.given = [self._given(shape, dtype, i) for i in range(self.number)]
        self.scalar: float | int | bool = rnd.choice((2.5, 0.5, 3, 1, True, -0.5))
        self.grad, self.training = rnd.random() < 0.9, rnd.random() < 0.7
        self.around = rnd.choice(AROUND) if rnd.random() < 0.05 else ""

    def _given(self, shape: tuple[int, ...], dtype: str, i: int) -> _Given:
        rnd = self.rnd
        if rnd.random() < 0.2:
            dtype = rnd.choice(DTYPES)
        if rnd.random() < 0.3:
            shape = rnd.choice(SHAPES + EMPTY)
        requires = rnd.random() < 0.6 and dtype in FLOATING
        alias = rnd.choice(ALIASES) if i and rnd.random() < 0.25 else ""
        return _Given(shape, dtype, rnd.choice(LAYOUTS), requires, rnd.random() < 0.3, alias)

    @property
    def parameters(self) -> list[str]:
        return [*(f"x{i}" for i in range(self.number)), "s", *(["extra"] if self.extra else [])]

    @property
    def tensors(self) -> list[str]:
        """What the program can call its tensors."""
        names = [f"x{i}" for i in range(self.number)]
        return names + {"dict": ["extra['a']"], "list": ["extra[0]", "extra[1]"]}.get(
            self.extra, []
        )

    def change(self) -> None:
        """Draw another kind of call: change one fact of the call before."""
        rnd = self.rnd
        fact = rnd.choice(FACTS)
        place = rnd.randrange(self.number)
        match fact:
            case "shape":
                self._change_size(self.given[place].shape, rnd.choice((0, 1, 2, 3, 4)))
            case "layout":
                self._replace(place, layout=rnd.choice(LAYOUTS))
            case "flags":
                argument = self.given[place]
                requires = not argument.requires and argument.dtype in FLOATING
                self._replace(place, requires=requires, leaf=rnd.random() < 0.3)
            case "number":
                self.scalar = rnd.choice((2.5, 0.5, 3, 1, True, -0.5))
            case "grad":
                self.grad = not self.grad
            case "training":
                self.training = not self.training
            case "around":
                self.around = "" if self.around else rnd.choice(AROUND)
            # The first argument has no other before it that it could be an alias of.
            case "alias" if place:
                alias = "" if self.given[place].alias else rnd.choice(ALIASES)
                self._replace(place, alias=alias)

    def _change_size(self, old: tuple[int, ...], size: int) -> None:
        """Change the first size of each argument of one shape, so that they keep having one."""
        for place, argument in enumerate(self.given):
            if argument.shape == old and old:
                self._replace(place, shape=(size, *old[1:]))

    def _replace(self, place: int, **fields: Any) -> None:
        self.given[place] = dataclasses.replace(self.given[place], **fields)

    def call(self, number: int) -> CallText:
        rnd = self.rnd
        lines = [line for i, g in enumerate(self.given) for line in g.lines(i, 10 * number)]
        args = [*(f"x{i}" for i in range(self.number)), repr(self.scalar)]
        if self.extra == "none":
            args.append("None")
        elif self.extra == "dict":
            lines.append(f"c = leaf({number}, (3,), torch.float32, requires_grad=True)")
            args.append("{'a': c, 'b': 'word'}")
        elif self.extra == "list":
            lines.append(f"c = leaf({number}, (3,), torch.float32)")
            args.append("[c, c[1:]]")
        picks = tuple(round(rnd.random(), 2) for _ in range(4))
        return CallText(
            tuple(lines),
            ", ".join(args),
            self.grad,
            self.training,
            rnd.random() < 0.08,
            rnd.choice(AFTER),
            picks,
            self.around,
        )


class _Writer:
    """Draws statements, tries each on the arguments of the first call, and keeps those that run."""

    def __init__(self, rnd: random.Random, names: Sequence[str], scope: dict[str, Any]) -> None:
        self.rnd = rnd
        self.names = list(names)
        self.scope = scope
        self.steps: list[Step] = []

    def _drawn(self) -> str:
        """A statement."""
        rnd = self.rnd
        (kind,) = rnd.choices(list(KINDS), [weight for _, weight in KINDS.values()])
        newer = self.names[-3:] if rnd.random() < 0.5 else self.names
        n = len(self.scope)
        return rnd.choice(KINDS[kind][0]).format(
            t=rnd.choice(newer), o=rnd.choice(self.names), s="s", v=f"v{n}", w=f"w{n}"
        )

    def add(self, number: int) -> None:
        region = ""
        for _ in range(3 * number):
            if len(self.steps) >= number:
                return
            region = (
                self.rnd.choice(REGIONS)
                if self.rnd.random() < 0.1
                else region
                if self.rnd.random() < 0.4
                else ""
            )
            text = self._drawn()
            step = Step(text, region)
            before = set(self.scope)
            try:
                exec(str(step), self.scope)
            except ERRORS:
                for name in set(self.scope) - before:  # made before the error
                    del self.scope[name]
                continue
            self.steps.append(step)
            self.names += sorted(
                name
                for name in set(self.scope) - before
                if isinstance(self.scope[name], torch.Tensor)
            )


def random_case(seed: int) -> Case:
    """The case of ``seed``. A call that raises in torch is left out."""
    rnd = random.Random(seed)
    while True:
        calls = _Calls(rnd)
        texts = [calls.call(0)]
        try:
            given = arguments_of(TORCH, texts[0])[1]
            break
        except ERRORS:  # such as a view that a shape does not have
            continue
    parameters, names = ", ".join(calls.parameters), calls.tensors
    torch.manual_seed(0)
    surroundings = Surroundings(TORCH)
    scope = surroundings.scope()
    scope.update(zip(calls.parameters, given, strict=True))
    writer = _Writer(rnd, names, scope)
    with torch.set_grad_enabled(texts[0].grad), eval(texts[0].around or "contextlib.nullcontext()"):
        writer.add(rnd.randint(1, 8))
    form = rnd.choice(
        ("tuple", "tuple", "tuple", "single", "list", "dict", "nested", "named", "sizes")
    )
    results = tuple(
        rnd.choice(writer.names[-4:] if rnd.random() < 0.6 else writer.names)
        for _ in range(rnd.randint(1, 4))
    )
    for number in range(1, rnd.choice((2, 3, 3, 4))):
        if rnd.random() < 0.3:
            texts.append(dataclasses.replace(texts[0], picks=texts[-1].picks))
            continue
        calls.change()
        texts.append(calls.call(number))
    dynamic = rnd.random() < 0.4
    partition = rnd.choice(("default", "default", "min cut", "min cut", "budget"))
    case = Case(
        seed,
        parameters,
        tuple(writer.steps),
        results,
        form,
        tuple(texts),
        dynamic,
        partition,
        rnd.random() < 0.06,
    )
    runs = tuple(text for text in texts if _runs(case, text) and not _depends_on_modes(case, text))
    return dataclasses.replace(case, calls=runs)


def _depends_on_modes(case: Case, text: CallText) -> bool:
    """Whether torch's ``unsafe_split`` gives a copy, as of a conjugate, or a view that follows its
    base, as in inference mode. Or whether torch gives hooks the noise of ``rrelu`` before it is
    drawn. Or whether its ``swapaxes_`` of a lazy conjugate moves elements, as in inference mode."""
    if "rrelu" in case.program and (text.hooks or "packed()" in case.program):
        return True
    source = str(text) + case.program
    if (
        "swapaxes_" in case.program
        and "inference_mode" in source
        and any(word in source for word in (".conj()", ".mH", ".imag"))
    ):
        return True
    return "unsafe_" in case.program and (".conj()" in str(text) or "inference_mode" in source)


def _runs(case: Case, text: CallText) -> bool:
    """Whether torch runs the call, and its backward pass: a trace runs both."""
    try:
        (seen,) = observed(
            TORCH,
            dataclasses.replace(case, calls=(dataclasses.replace(text, after=("gradients",)),)),
            lambda f: f,
        )
    except ERRORS:
        return False
    return seen[-1][0] != "error"
