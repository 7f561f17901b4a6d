"""Serve ``torch.compile`` under the drop-in: Dynamo captures graphs from programs with tensors of
the session.

The drop-in is suspended while Dynamo interprets the program and its backends compile the graphs.
Then the graphs run in the session. A graph of the backend ``eager`` is recorded op by op. A graph
of ``aot_eager``, or of a user's backend that calls ``aot_module_simplified``, is compiled by
``runtime.aot``. A graph of ``inductor`` is compiled by torch's AOTAutograd and recorded as one
custom function. The derivative of that function is the compiled backward graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.meta_utils import MetaTensorDescriber
from torch.utils.weak import WeakIdKeyDictionary

from ..aot.calls import simplified
from ..aot.compilers import graph_names
from ..jit import jit
from ..seam.ambient import Ambient
from ..session.tensor import SESSION, Tensor, wrap
from ..torch_private.dispatcher import HigherOrderOperator
from ..torch_private.fake_tensors import FakeTensorMode
from ..torch_private.graph_parts import TracingContext
from ..torch_private.pytrees import pytree
from .patches import Patches
from .stepping_aside import Exchange, aside, ours_unless_aside

_compile = torch.compile  # torch's own: this module is imported before names are replaced
_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def _run_in_session(
    compiled: Callable[..., object], graph: Callable[..., object]
) -> Callable[..., object]:
    """Return ``compiled``, with results that are tensors of the session even if no argument is one.

    ``graph`` is what a backend has compiled. It runs in place of ``compiled`` if an argument has a
    tangent, which a compiled graph would lose.
    """

    @functools.wraps(compiled, updated=())
    def run(*args: object) -> object:
        dual = any(
            isinstance(argument, Tensor) and SESSION.tangent_of(argument) is not None
            for argument in args
        )
        results = graph(*args) if dual else compiled(*args)
        return pytree.tree_map_only(torch.Tensor, _wrap_plain, results)

    return run


def _wrap_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor as one of the session, and any other as it is."""
    if type(tensor) is torch.Tensor:
        return wrap(tensor)
    return tensor


def _coerce_tangent(tensor: Tensor, metadata: object, expected: object = None) -> torch.Tensor:
    """Return the inner tensor. AOTAutograd calls this on a cotangent whose class its compiled
    backward graph does not expect."""
    return tensor._inner


Tensor.__coerce_same_metadata_as_tangent__ = _coerce_tangent  # type: ignore[attr-defined]


class _Backend(Ambient):
    """The exchange of the capture whose graph a backend of Dynamo compiles now on this thread."""

    exchange: Exchange | None = None


_BACKEND = _Backend()


@contextlib.contextmanager
def _backend_runs(exchange: Exchange) -> Iterator[None]:
    """Say that a backend compiles a graph of the capture with this exchange, in this block."""
    before, _BACKEND.exchange = _BACKEND.exchange, exchange
    try:
        yield
    finally:
        _BACKEND.exchange = before


def _simplified_entry(theirs: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """Return ``aot_module_simplified`` for backends of Dynamo. ``theirs`` compiles what is tied to
    torch's AOTAutograd."""

    @functools.wraps(theirs)
    def call(mod: Any, args: Sequence[object], *rest: Any, **options: Any) -> object:
        """Compile a graph of Dynamo by this package, or by ``theirs``."""
        exchange = _BACKEND.exchange
        # the backward graph is compiled in the first backward pass, when nothing is suspended
        if exchange is None or _needs_torchs(mod, (*rest, *options.values())):
            if options.get("bw_compiler") is not None:
                options["bw_compiler"] = _suspend_later(options["bw_compiler"], patches)
            if exchange is not None:
                args = _examples(mod, args)
            return theirs(mod, args, *rest, **options)
        # the capture runs while the drop-in is suspended, so arguments are torch's functions
        rest = tuple(map(patches.replacement, rest))
        options = {name: patches.replacement(value) for name, value in options.items()}
        examples = list(map(exchange.known, _examples(mod, args)))
        compiled = simplified.aot_module_simplified(mod, examples, *rest, **options)
        # Dynamo calls such a graph with one list, which it is to empty
        if type(mod).__name__ == "GmWrapper":
            return _take_list(compiled)
        return compiled

    return call


def _suspend_later(compiler: Callable[..., object], patches: Patches) -> object:
    """Wrap torch's compiler of the backward graph. It runs later, in the first backward pass, so it
    must suspend the drop-in itself."""
    if not hasattr(compiler, "compiler_fn"):
        return _suspended_call(compiler, patches)
    compiler.compiler_fn = _suspended_call(compiler.compiler_fn, patches)
    return compiler


def _examples(mod: object, args: Sequence[object]) -> list[object]:
    """Return the example arguments. Those of a graph with symbolic sizes are the fake tensors of
    Dynamo for them."""
    graph = getattr(mod, "graph", None) or getattr(getattr(mod, "gm", None), "graph", None)
    if graph is None:
        return list(args)
    # real examples would make constants of Dynamo's symbolic sizes
    fakes = [node.meta.get("example_value") for node in graph.find_nodes(op="placeholder")]
    if len(fakes) == len(args) and any(map(_has_symbols, fakes)):
        return fakes
    return list(args)


def _has_symbols(value: object) -> bool:
    """Return whether ``value`` is a symbol, or a tensor with a symbol among its sizes."""
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _take_list(function: Callable[..., object]) -> Callable[[list[object]], object]:
    """Return ``function`` that takes its arguments as one list and empties it, so that they are
    freed as soon as they are used."""

    def call(args: list[object]) -> object:
        arguments = tuple(args)
        args.clear()
        return function(*arguments)

    return call


def _needs_torchs(mod: torch.nn.Module, options: tuple[object, ...]) -> bool:
    """Return whether a graph must be compiled by torch's AOTAutograd: it is for Inductor, or has an
    operator of higher order or a transform."""
    if any(type(option).__name__ == "SerializableAOTDispatchCompiler" for option in options):
        return True
    # the branches of an operator of higher order are graphs inside of the graph
    for module in mod.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if isinstance(node.target, HigherOrderOperator) or _is_of_functorch(node.target):
                return True
    return False


def _is_of_functorch(target: object) -> bool:
    return "functorch" in (getattr(target, "__module__", None) or "")


def _exchange(mode: object) -> Exchange:
    """Return the table of plain tensors of a capture. Each capture has one, because a capture
    identifies tensors by ``id``."""
    exchange: Exchange = vars(mode).setdefault("_session", Exchange())
    return exchange


@contextlib.contextmanager
def _skip_own_frames() -> Iterator[None]:
    """Let Dynamo skip the runtime's own code in this block, as it skips torch's."""
    rules = importlib.import_module("torch._dynamo.trace_rules")
    rules.SKIP_DIRS.append(_OWN_FOLDER)
    rules._recompile_re()  # Dynamo has made one pattern of the list
    try:
        yield
    finally:
        rules.SKIP_DIRS.remove(_OWN_FOLDER)
        rules._recompile_re()


def _patch_dynamo(dynamo: Patches, patches: Patches) -> None:
    """Teach Dynamo about tensors of the session. ``dynamo`` stays in force while
    ``patches`` are suspended."""
    guards: Any = importlib.import_module("torch._dynamo.guards")
    convert_frame: Any = importlib.import_module("torch._dynamo.convert_frame")
    builder: Any = importlib.import_module("torch._dynamo.variables.builder")
    output_graph: Any = importlib.import_module("torch._dynamo.output_graph")

    for converter in (convert_frame.ConvertFrame, convert_frame.ConvertFrameAssert):
        dynamo.set(converter, "__call__", _suspended_call(converter.__call__, patches))
    original_wrap = builder.VariableBuilder._wrap
    original_class = builder.infer_subclass_type
    original_backend = output_graph.OutputGraph._call_user_compiler

    def wrap_variable(variable: Any, value: object) -> object:
        if type(value) is Tensor:
            return variable.wrap_tensor(value)
        # a closure may hold a name of torch since before the drop-in stood aside
        return original_wrap(variable, patches.original(value))

    def infer_class(value: object) -> object:
        if type(value) is Tensor:
            return None  # Dynamo takes it for a plain tensor
        return original_class(value)

    def call_backend(
        graph: Any,
        module: torch.fx.GraphModule,
        examples: list[torch.Tensor | torch.SymInt],
    ) -> object:
        """Let the backend compile the graph for plain tensors, and run the result in the
        session."""
        exchange = _exchange(graph.fake_mode)
        plain = list(map(exchange.plain, examples))
        contexts = graph.tracing_context.tensor_to_context
        for example, stand_in in zip(examples, plain, strict=True):
            # which sizes are fixed, for a backend that makes fake tensors once more
            if stand_in is not example and example in contexts:
                contexts[stand_in] = contexts[example]
        with _backend_runs(exchange):
            return _run_in_session(original_backend(graph, module, plain), module)

    for name in ("id_match_unchecked", "CLOSURE_MATCH"):
        dynamo.set(
            guards.GuardBuilder,
            name,
            _guard_by_original(getattr(guards.GuardBuilder, name), patches),
        )
    dynamo.set(guards.GuardBuilder, "TENSOR_MATCH", _guard_on_history(guards))
    dynamo.set(guards.GuardManager, "grad_manager", _guard_on_grad)
    dynamo.set(builder.VariableBuilder, "_wrap", wrap_variable)
    dynamo.set(builder, "infer_subclass_type", infer_class)
    dynamo.set(output_graph.OutputGraph, "_call_user_compiler", call_backend)
    dynamo.enter(_skip_own_frames())


def patch_fake_tensors(patches: Patches, lasting: Patches) -> None:
    """Let modes of fake tensors take tensors of the session, by their plain tensors. The user's
    program gets a tensor of the session around the fake tensor, and Dynamo the fake tensor."""
    original = FakeTensorMode.from_tensor
    # the same tensor must get the same fake one again
    leaves: MutableMapping[FakeTensorMode, MutableMapping[Tensor, Tensor]] = WeakKeyDictionary()

    def from_tensor(mode: FakeTensorMode, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return the fake tensor of one, in a tensor of the session where a user's program asks."""
        if type(tensor) is not Tensor:
            return original(mode, tensor, **options)
        of_mode = leaves.setdefault(mode, WeakIdKeyDictionary())
        dynamo = TracingContext.try_get() is not None
        if not dynamo and tensor in of_mode:
            return of_mode[tensor]
        with aside(patches):
            fake = original(mode, _exchange(mode).plain(tensor), **options)
        if dynamo:
            return fake
        leaf = wrap(fake, tensor.requires_grad)
        of_mode[tensor] = leaf if tensor.is_leaf else leaf.clone()  # type: ignore[assignment]
        return of_mode[tensor]

    original_description = MetaTensorDescriber.describe_tensor

    def describe(describer: MetaTensorDescriber, tensor: torch.Tensor, **options: Any) -> object:
        description = original_description(describer, tensor, **options)
        # a user's class makes its own instances, which are below the tape
        kind = getattr(description.type, "_kind", None)
        if kind is None:
            return description
        return dataclasses.replace(description, type=kind)

    lasting.set(FakeTensorMode, "from_tensor", from_tensor)
    lasting.set(MetaTensorDescriber, "describe_tensor", describe)


def _suspended_call(method: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """Return ``method``, which runs while the drop-in is suspended."""

    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> object:
        with aside(patches):
            return method(*args, **kwargs)

    return call


def _guard_by_original(guard_on: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """Return ``guard_on``, which compares identities. A name that the drop-in replaces is torch's
    in a capture and ours at a call, so torch's object is compared for either."""

    @functools.wraps(guard_on)
    def add_guard(guards: Any, guard: Any, *args: object, **kwargs: object) -> None:
        """Add the guard, or for a name that is replaced one on torch's object."""
        original = patches.original(guards.get(guard))
        if not patches.replaces(original):
            guard_on(guards, guard, *args, **kwargs)
            return
        guards.get_guard_manager(guard).add_lambda_guard(
            lambda now: patches.original(now) is original,
            [f"{guards.arg_ref(guard)} is {original} or what replaces it"],
            guard.user_stack,
        )

    return add_guard


def _history(tensor: torch.Tensor) -> tuple[bool, ...]:
    """Return what a graph of Dynamo depends on, of what the session stores for a tensor."""
    return tensor.requires_grad, tensor.is_leaf, tensor.is_inference()


def _guard_on_history(guards: Any) -> Callable[..., object]:
    """Return the guard on a tensor. Dynamo's own compares what is below Python, where no tensor of
    the session requires grad."""
    guard_on = guards.GuardBuilder.TENSOR_MATCH

    @functools.wraps(guard_on)
    def add_guard(builder: Any, guard: Any, value: object = None) -> None:
        """Add torch's guard, and for a tensor of the session one on its history."""
        guard_on(builder, guard, value)
        # Dynamo passes the tensor, a weak reference to it, or nothing
        tensor = value
        if isinstance(value, guards.TensorWeakRef):
            tensor = value()
        if tensor is None:
            tensor = builder.get(guard)
        if not isinstance(tensor, Tensor):
            return
        history = _history(tensor)
        text = f"requires_grad, is_leaf, is_inference() of {builder.arg_ref(guard)} are {history}"
        builder.get_guard_manager(guard).add_lambda_guard(
            lambda current: _history(current) == history,
            guards.get_verbose_code_parts([text], guard),
            guard.user_stack,
        )

    return add_guard


def _guard_on_grad(manager: Any, **options: object) -> object:
    """Return the guard on ``x.grad``. Dynamo's own reads a field below Python, where a tensor of
    the session has nothing."""
    return manager.getattr_manager(attr="grad", **options)


def _refusal_of(name: str) -> Callable[..., object]:
    """Return a function in place of torch's function ``name`` that raises."""

    def call(*args: object, **kwargs: object) -> object:
        raise RuntimeError(
            f"runtime.dropin: {name} describes a graph of torch's own AOTAutograd. "
            "Use aot_export_module(trace_joint=True), or call it outside of the drop-in."
        )

    return call


def jitted(
    model: Callable[..., object] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., object] = "inductor",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> Any:
    """Do ``torch.compile`` by :func:`runtime.jit`. What cannot be captured runs eagerly, or is an
    error with ``fullgraph``. A ``backend`` that is a function compiles the graphs; the named ones,
    and ``mode`` and ``options``, are for Inductor, and the graphs are replayed."""
    # used as a decorator with options
    if model is None:
        return functools.partial(
            jitted,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=backend,
            mode=mode,
            options=options,
            disable=disable,
        )
    if disable:
        return model
    compiler: str | Callable[..., Any] = "replay"
    if callable(backend):
        compiler = backend
    on_break = "eager"
    if fullgraph:
        on_break = "error"
    return jit(model, dynamic=dynamic, compiler=compiler, on_break=on_break)


def compiler(patches: Patches, by_jit: bool) -> dict[int, tuple[object, object]]:
    """Return ``{id of a function of torch: (function, ours)}`` for ``torch.compile`` and what its
    backends call. Dynamo is imported, and changed, when it is first asked for. ``by_jit``:
    ``torch.compile`` is :func:`jitted`."""

    @functools.cache
    def change_dynamo() -> None:
        """Replace parts of Dynamo, once."""
        dynamo = Patches()
        patches.callback(dynamo.undo)
        with aside(patches):
            _patch_dynamo(dynamo, patches)

    def compile(*args: Any, **kwargs: Any) -> object:
        """Call ``torch.compile`` while the drop-in is suspended."""
        change_dynamo()
        with aside(patches):
            return _compile(*args, **kwargs)

    entries: Any = importlib.import_module("torch._functorch.aot_autograd")
    theirs = entries.aot_module_simplified
    # graphs of both are numbered together
    patches.set(graph_names, "next_number", lambda: next(entries.AOT_COUNTER))
    ours = jitted if by_jit else compile
    pairs = [
        (_compile, ours_unless_aside(_compile, ours)),
        (theirs, _simplified_entry(theirs, patches)),
    ]
    for name in ("aot_export_joint_with_descriptors", "aot_compile_joint_with_descriptors"):
        entry = getattr(entries, name)
        pairs.append((entry, ours_unless_aside(entry, _refusal_of(name))))
    return {id(theirs): (theirs, ours) for theirs, ours in pairs}
