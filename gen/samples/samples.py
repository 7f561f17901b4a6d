"""Wrap samples as flat functions from tensors to a tuple of tensors.

The function closes over all other arguments. A sample records which inputs are differentiable. One
run of the op on plain tensors shows its facts: whether it draws random numbers, whether it writes
to its inputs, and which warnings its kernels give.

Samples of one op and dtype are built once per generated module. Its checks share them, and the
results computed for them (:attr:`Sample.memory`).
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from gen.devices.place import current_place
from gen.samples import descriptions, opinfo
from gen.samples.descriptions import Call
from gen.samples.domains import Domain
from gen.samples.seeds import seeded, seeded_with_numpy, stable_seed
from gen.targets.protocol import Values
from gen.torch_private.loaded_with_torch import OpOverload, TorchDispatchMode, pytree
from gen.versions import is_for_installed

if TYPE_CHECKING:
    from gen.torch_private.test_helpers import OpInfo

Tensor = torch.Tensor
Apply = Callable[..., Any]
LARGEST = 20_000  # elements of all inputs together; larger samples show no more than smaller ones


@dataclass(frozen=True)
class Op:
    """An op with its variants and references."""

    name: str
    call: Apply
    inplace: Apply | None = None
    out: Apply | None = None  # takes out=
    reference: Apply | None = None  # on tensors
    numpy_reference: Callable[[Any], Any] | None = None  # on an OpInfo SampleInput
    # the entry of torch's OpInfo database, if there is one
    info: OpInfo | None = None
    former_name: str | None = None  # its samples are those that it had under this name

    @property
    def seed(self) -> str:
        """Return the name by which its samples are drawn."""
        return self.former_name or self.name


@dataclass(repr=False)  # torch.func.vmap takes the repr of what it maps
class Sample:
    """A call of an op."""

    index: int
    description: str
    op: Op
    # plain tensors that do not require grad
    inputs: tuple[Tensor, ...]
    differentiable: tuple[bool, ...]
    # puts tensors in the places of the inputs, and returns ``(args, kwargs)``
    rebuild: Callable[[Sequence[Any]], tuple[list[Any], dict[str, Any]]]
    # is applied to what the op returns, before it is compared
    process: Callable[[Any], Any]
    # calls the op in place of a plain call, as OpInfo's wrappers for derivatives do
    wrap: Callable[..., Any] | None
    # equal for samples that are likely to take the same paths, see :func:`_layout`
    signature: tuple[Any, ...]
    seed: int
    # the domains of the inputs, where they are known
    domains: tuple[Domain | None, ...] = ()
    # whether inputs are moved back into their domains before the op gets them
    keeps_domains: bool = False
    # results that checks have computed for the sample
    memory: dict[Any, Any] = field(default_factory=dict)
    _facts: Facts | None = None

    def __call__(self, *tensors: Any) -> Values:
        """Call the flat function.

        It first clones the inputs that the op writes to, so that it has no side effect.
        """
        if self.facts.mutates:
            tensors = tuple(map(_clone_if, tensors, self.facts.mutated))
        return self.outputs(self.raw(self.op.call, tensors))

    def raw(self, call: Apply, tensors: Sequence[object], **extra: object) -> Any:
        """Call `call` on the sample's arguments with `tensors` in their places.

        Return the result as it is.
        """
        if self.keeps_domains:
            tensors = list(map(_near, tensors, self.domains, self.differentiable))
        args, kwargs = self.rebuild(tensors)
        if self.wrap is not None:
            return self.wrap(call, *args, **kwargs, **extra)
        return call(*args, **kwargs, **extra)

    def run_backward(self) -> None:
        """Run the op, and its backward pass if it has one, without noting anything."""
        with seeded(self.seed):
            inputs = []
            for tensor, differentiable in zip(self.inputs, self.differentiable, strict=True):
                inputs.append(tensor.clone().requires_grad_(differentiable))
            outputs = self.outputs(self.raw(self.op.call, inputs))
            with_history = [output for output in outputs if output.requires_grad]
            # backward() asks for a real number, as the size of a complex one is.
            torch.autograd.backward([output.abs().sum() for output in with_history])

    def outputs(self, raw: object) -> Values:
        """Return a raw result as a tuple of dense tensors."""
        return flat_tensors(self.process(raw))

    @property
    def facts(self) -> Facts:
        """Return the facts from one run on plain tensors.

        If the op failed there, its error is raised here, each time.
        """
        if self.error is not None:
            raise self.error
        assert self._facts is not None
        return self._facts

    @property
    def error(self) -> Exception | None:
        """Return what the op itself raised on plain tensors, or None."""
        if self._facts is None:
            self._facts = _observe(self)
        return self._facts.error

    @property
    def draws(self) -> bool:
        """Return whether the op is only a draw.

        Such an op is one of ATen with the tag of draws, whose result is the numbers that it drew.
        """
        tags = getattr(self.op.call, "tags", ())
        return self.facts.random and torch.Tag.nondeterministic_seeded in tags

    @property
    def numel(self) -> int:
        return sum(tensor.numel() for tensor in self.inputs)

    @property
    def numbers(self) -> list[Any]:
        """List the arguments that are no tensors."""
        leaves = pytree.tree_leaves(self.rebuild(self.inputs))
        return [leaf for leaf in leaves if not isinstance(leaf, Tensor)]


def _near(value: Any, domain: Domain | None, differentiable: bool) -> Any:
    """Return the value of `domain` near a differentiable input, and any other input as it is."""
    if domain is None or domain.near is None or not differentiable:
        return value
    return domain.near(value)


def _clone_if(value: Tensor, written: bool) -> object:
    if written:
        return value.clone()
    return value


@dataclass(frozen=True)
class Facts:
    """The facts that one run of an op on plain tensors shows."""

    outputs: tuple[Tensor, ...] = ()
    # whether the op wrote to each input
    mutated: tuple[bool, ...] = ()
    # whether the op drew random numbers
    random: bool = False
    # each text with its class
    warnings: tuple[tuple[str, type[Warning]], ...] = ()
    # the error of the run; with one there are no other facts
    error: Exception | None = None

    @property
    def mutates(self) -> bool:
        return any(self.mutated)


def flat_tensors(result: object) -> Values:
    """Return the tensors of `result`, in order.

    Numbers become tensors, and sparse tensors dense ones. Arrays of other libraries are refused.
    Anything else is left out.
    """
    leaves = []
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, Tensor):
            if leaf.layout is not torch.strided:
                leaf = leaf.to_dense()
            leaves.append(leaf)
        elif isinstance(leaf, complex):
            leaves.append(torch.tensor(leaf, dtype=torch.complex128))
        elif isinstance(leaf, (bool, int, float)):
            leaves.append(torch.tensor(leaf))
        elif hasattr(leaf, "__array__"):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise TypeError(
                f"the op returned a {kind}, no torch.Tensor: "
                "a target with values of its own offers `op` and `flat`"
            )
    return tuple(leaves)


def _states() -> list[Tensor]:
    """Return the states of the global generators.

    These are the generators of the CPU, and of an accelerator that has started.
    """
    states = [torch.get_rng_state()]
    device = torch.accelerator.current_accelerator()
    if device is None:
        return states
    module: Any = torch.get_device_module(device)
    is_started = getattr(module, "is_initialized", lambda: False)()
    if is_started and hasattr(module, "get_rng_state"):
        states.append(module.get_rng_state())
    return states


class _RandomSpy(TorchDispatchMode):
    """Note whether any kernel drew from the global generator.

    A wrapper may restore the state of the generator afterwards, so the state after the op would not
    show it.
    """

    supports_higher_order_operators = True
    drew = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # A branch or a loop is no OpOverload and has no tags, so its draws are looked for.
        if isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = _states()
        result = func(*args, **(kwargs or {}))
        self.drew |= not all(map(torch.equal, before, _states()))
        return result


def _observe(sample: Sample) -> Facts:
    """Run the op once on copies of the inputs, and return its facts."""
    inputs = tuple(tensor.clone() for tensor in sample.inputs)
    # A write shows as a higher version, or as another value.
    versions = [copy._version for copy in inputs]
    try:
        with seeded(sample.seed), warnings.catch_warnings(record=True) as seen, _RandomSpy() as spy:  # type: ignore[no-untyped-call]
            warnings.simplefilter("always")
            outputs = sample.outputs(sample.raw(sample.op.call, inputs))
    except Exception as error:
        return Facts(error=error)
    mutated = []
    for copy, original, version in zip(inputs, sample.inputs, versions, strict=True):
        mutated.append(copy._version != version or not _are_identical(copy, original))
    warned = dict.fromkeys((str(warning.message), warning.category) for warning in seen)
    return Facts(outputs, tuple(mutated), spy.drew, tuple(warned))


def _are_identical(first: Tensor, second: Tensor) -> bool:
    """Return whether values are equal, and NaN where the other one is.

    Versions alone do not show all writes. Kernels of batch norm write running statistics without
    incrementing them.
    """
    # An assignment to `data` may change the shape.
    if first.shape != second.shape:
        return False
    if torch.equal(first, second):
        return True
    are_nan = (first != first) & (second != second)
    return bool(((first == second) | are_nan).all())


# --- building -------------------------------------------------------------------------------------


def resolve(path: str) -> Any:
    """Return the object at ``module:attribute`` or at a dotted name."""
    module, attributes = located(path)
    value: Any = importlib.import_module(module)
    for part in attributes:
        value = getattr(value, part)
    return value


def located(path: str) -> tuple[str, list[str]]:
    """Import the module of a path of :func:`resolve`.

    Return the name of the module, and the attributes that lead on from it.
    """
    if ":" in path:
        module, attribute = path.split(":", 1)
        importlib.import_module(module)
        return module, attribute.split(".")
    parts = path.split(".")
    # The longest beginning that can be imported is the module. So torch.nn comes before torch.
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        return module, parts[cut:]
    raise ModuleNotFoundError(f"{path!r} names nothing that can be imported")


def make_op(name: str, row: Mapping[str, Any]) -> Op:
    """Return the op of a matrix row.

    `row` takes precedence over OpInfo. An op without OpInfo needs an importable dotted name.
    """
    info = None
    if "call" not in row:
        info = opinfo.lookup(name)
    reference = _resolve_key(row, "reference")
    inplace, out = _resolve_key(row, "inplace"), _resolve_key(row, "out")
    former = row.get("former_name")
    if former is not None:
        _FORMER_NAMES[name] = former
    if info is None:
        call = resolve(row.get("call") or name)
        return Op(name, call, inplace, out, reference, former_name=former)
    numpy_reference = None
    # The row's own reference takes precedence over that of OpInfo.
    if info.ref is not None and reference is None:
        numpy_reference = info.ref
    if out is None and info.supports_out:
        out = info.op
    inplace = inplace or info.get_inplace()
    return Op(name, info.op, inplace, out, reference, numpy_reference, info, former)


def _resolve_key(row: Mapping[str, Any], key: str) -> Any:
    """Return the object of which the row has the path, or None."""
    if not row.get(key):
        return None
    return resolve(row[key])


_FORMER_NAMES: dict[str, str] = {}  # the former names of the rows of this process that moved


def by_former_names(label: str) -> str:
    """Return the label of a program as it was before its rows moved.

    Labels seed draws, so the draws stay the same.
    """
    for name in _FORMER_NAMES.keys() & set(re.findall(r"[\w.]+", label)):
        # Only whole names are replaced, because torch.exp is no part of torch.exp2.
        label = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", _FORMER_NAMES[name], label)
    return label


def candidates(
    op: Op, row: Mapping[str, Any], dtype: torch.dtype, device: str, wrapped: bool
) -> list[Sample]:
    """Return every sample of the op for `dtype`, in the order of its source. Nothing is run."""
    # Samples depend on op and dtype alone, so that all checks of an op share them.
    seed = ("samples", op.seed, dtype)
    source = row.get("samples", "opinfo")
    others: set[int] = set()  # samples for other versions of torch
    if source == "opinfo":
        if op.info is None:
            raise LookupError(f"{op.name}: no `samples` in its row and no OpInfo of that name")
        calls = _from_opinfo(op.info, dtype, device, seed, wrapped)
    else:
        with seeded_with_numpy(*seed):
            if isinstance(source, str):
                source = descriptions.called(source, resolve(source), dtype, device)
            rows = list(source)
            # All samples are drawn, so that those of other versions do not change the draws of the
            # rest.
            calls = list(descriptions.build(rows, dtype, device))
            for index, described in enumerate(rows):
                if not is_for_installed(described.get("torch")):
                    others.add(index)
    all_samples = []
    for index, call in enumerate(calls):
        if index in others:
            continue
        sample = _normalise(op, index, call, stable_seed(*seed, index))
        if row.get("differentiable", True) is False:
            sample = replace(sample, differentiable=(False,) * len(sample.inputs))
        all_samples.append(sample)
    return all_samples


def first_samples(name: str, info: OpInfo, count: int) -> list[Sample]:
    """Return the first samples of the database for an op, in double precision if it takes that."""
    dtypes = info.supported_dtypes("cpu")
    dtype = torch.float64 if torch.float64 in dtypes else min(dtypes, key=str, default=None)
    # An op of accelerators alone has no dtype on the CPU.
    if dtype is None:
        return []
    op = make_op(name, {})
    seed = ("first samples", op.seed, dtype)
    with seeded_with_numpy(*seed), warnings.catch_warnings():
        # Sampling itself is not under test.
        warnings.simplefilter("ignore")
        drawn = opinfo.drawn(info, "cpu", dtype, count)
    samples = []
    for index, sample in enumerate(drawn):
        samples.append(from_call(op, index, (sample.input, *sample.args), dict(sample.kwargs)))
    return samples


def from_call(op: Op, index: int, args: tuple[object, ...], kwargs: dict[str, object]) -> Sample:
    """Return the sample of one explicit call. Its outputs are not processed."""
    return _normalise(op, index, Call(args, kwargs), stable_seed(op.seed, index))


def _from_opinfo(
    info: OpInfo, dtype: torch.dtype, device: str, seed: tuple[object, ...], wrapped: bool
) -> list[Call]:
    """Return the calls of OpInfo's samples, with OpInfo's wrapper for derivatives if one is due."""
    wrap = None
    if wrapped and opinfo.has_own_wrapper(info):
        wrap = opinfo.gradcheck_wrapper(info)
    return [
        Call((sample.input, *sample.args), dict(sample.kwargs), sample.output_process_fn_grad, wrap)
        for sample in opinfo.samples(info, device, dtype, seed)
    ]


def _normalise(op: Op, index: int, call: Call, seed: int) -> Sample:
    """Return the sample of a call: its tensors apart from its other arguments."""
    leaves, spec = pytree.tree_flatten((list(call.args), call.kwargs))
    places = [place for place, leaf in enumerate(leaves) if _is_input(leaf)]
    detached = {id(leaves[place]): leaves[place].detach() for place in places}
    # A tensor that occurs twice stays one, because an op may refuse that, and a copy would hide it.
    inputs = tuple(detached[id(leaves[place])] for place in places)
    differentiable = tuple(leaves[place].requires_grad for place in places)
    fixed = list(map(_without_history, leaves))

    def rebuild(tensors: Sequence[object]) -> tuple[list[Any], dict[str, Any]]:
        values = list(map(_fresh, fixed))
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        rebuilt_args, rebuilt_kwargs = pytree.tree_unflatten(values, spec)
        return rebuilt_args, rebuilt_kwargs

    input_places = set(places)
    shown = list(map(_show, leaves))
    shown_args, shown_kwargs = pytree.tree_unflatten(shown, spec)
    others = tuple(text for place, text in enumerate(shown) if place not in input_places)
    texts = list(map(str, shown_args))
    texts += [f"{key}={value}" for key, value in shown_kwargs.items()]
    signature = (tuple(map(_layout, inputs)), str(spec), others)
    return Sample(
        index,
        ", ".join(texts).replace("'", ""),
        op,
        inputs,
        differentiable,
        rebuild,
        call.process,
        call.wrap,
        signature,
        seed,
        tuple(call.domains.get(id(leaves[place])) for place in places),
    )


def _show(leaf: object) -> str:
    """Return an argument as text. A tensor shows as its dtype and shape."""
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    if callable(leaf) and hasattr(leaf, "__name__"):
        return str(leaf.__name__)
    if isinstance(leaf, torch.Generator):
        return f"Generator({leaf.initial_seed()})"
    return repr(leaf)


def _is_input(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout is torch.strided


def _fresh(leaf: object) -> object:
    """Return the argument that a run of the op gets in place of `leaf`.

    A generator is copied, so that each run draws the same. On another device than the CPU the
    argument is moved there.
    """
    place = current_place()
    if place is not None:
        return place.argument(leaf)
    return leaf.clone_state() if isinstance(leaf, torch.Generator) else leaf


def _without_history(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.detach()
    return leaf


def _layout(x: Tensor) -> tuple[int, tuple[int, ...], torch.dtype]:
    """Return the part of a signature that an input contributes.

    Kernels treat sizes of 0 and 1 specially, so a size counts as 0, 1 or more.
    """
    return x.ndim, tuple(min(size, 2) for size in x.shape), x.dtype


def _may_leave_domains(sample: Sample) -> bool:
    """Return whether small moves of an input leave its domain."""
    return any(domain is not None and domain.near is not None for domain in sample.domains)


class Store:
    """Samples of the current family of ops. Another family evicts them."""

    def __init__(self) -> None:
        self.family: str | None = None
        self._pools: dict[object, list[Sample]] = {}

    def pool(
        self,
        family: str,
        name: str,
        row: Mapping[str, Any],
        dtype: torch.dtype,
        device: str,
        wrapped: bool,
    ) -> list[Sample]:
        """Return all candidates.

        `wrapped` selects OpInfo's wrapper for derivatives if the op has one. It also keeps inputs
        in their domains.
        """
        # Modules run one after another, and no other one asks for the ops of this family.
        if family != self.family:
            self._pools.clear()
            self.family = family
        op = make_op(name, row)
        by_opinfo = wrapped and op.info is not None and opinfo.has_own_wrapper(op.info)
        key = (name, dtype, device, by_opinfo)
        if key not in self._pools:
            self._pools[key] = candidates(op, row, dtype, device, by_opinfo)
        pool = self._pools[key]
        if not wrapped or not any(map(_may_leave_domains, pool)):
            return pool
        kept = (*key, "in their domains")
        if kept not in self._pools:
            # `replace` would pass on the results that were computed without the domains.
            in_domains = []
            for sample in pool:
                in_domains.append(replace(sample, keeps_domains=True, memory={}, _facts=None))
            self._pools[kept] = in_domains
        return self._pools[kept]


STORE = Store()
