"""Try Inductor in a process of its own: compile a graph and run the code once, on zeros.

:mod:`.inductor_trial` starts this file as a program. It imports torch alone, so that it is ready
soon. A request is two messages: what is needed in order to read the graph, and the graph. The
answers are pairs of a word and a text:

| word | when |
|---|---|
| ``ready`` | at the start: requests are read from now on |
| ``compiled`` | the graph is compiled, and its code runs next |
| ``ran`` | the code has run, and the graph is compiled once more, to code with a wrapper in C++ |
| ``done`` | the code has run, or has raised an error, as kernels do for some elements |
| ``unread`` | the graph cannot be read here, as its operators are known in the other one alone |
| ``error`` | Inductor raised an error, or its code found another layout than it expects |
"""

from __future__ import annotations

import contextlib
import copyreg
import importlib
import logging
import pickle
import pkgutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import fx

_MODULES = {
    "torch_transform_matrix": "runtime.aot"
}  # by the name of operators, where they are defined
# seconds after the limit until the process ends itself, as the one that waits may be gone
GRACE = 5.0
# what Inductor reads of nodes
_FACTS = ("val", "tensor_meta", "user_visible_output_idxs", "unbacked_bindings")
# what an environment of sizes has for its own fake tensors
_OF_ANOTHER = ("tracked_fakes", "fake_tensor_cache", "events")


def request(
    graph: fx.GraphModule, inputs: Sequence[object], limit: float, *, cpp_wrapper: bool = False
) -> tuple[bytes, bytes]:
    """Return the messages that ask for a trial.

    They have facts about tensors, and the elements of constants.
    """
    from torch.fx._graph_pickler import Options

    # the other process has to import the libraries of these ops before it unpickles the graph
    names: set[str] = set()
    for part in _graphs(graph):
        targets = [node.target for node in part.nodes]
        names.update(
            target.namespace for target in targets if isinstance(target, torch._ops.OpOverload)
        )
    config = importlib.import_module("torch._inductor.config").get_config_copy()
    head = {
        "limit": limit,
        "operators": sorted(names),
        "state": _state(),
        "cpp_wrapper": cpp_wrapper,
    }
    options = Options(ops_filter=None, node_metadata_key_filter=_FACTS.__contains__)
    return pickle.dumps(head), _pickler().dumps((graph, list(inputs), config), options)


def cause(error: BaseException) -> str:
    """Return, in a line, the error that one of Inductor wraps."""
    inner = getattr(error, "inner_exception", None)
    reason = error
    if isinstance(inner, BaseException):
        reason = inner
    return f"{type(reason).__name__}: {str(reason).strip().partition(chr(10))[0].rstrip('.')}"


def code_of(
    graph: fx.GraphModule, values: Sequence[object], *, cpp_wrapper: bool
) -> Callable[[list[Any]], Any]:
    """Return the code that Inductor makes of ``graph``, and store it on disk.

    Without a wrapper in C++, Python calls the kernels. Such code asserts the layout of what a
    kernel returns. A wrapper in C++ does not: that takes it a third of a small call.
    """
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    config: Any = importlib.import_module("torch._inductor.config")
    options: dict[str, bool] = {}
    changes: dict[str, bool] = {}
    if cpp_wrapper:
        options = {"cpp_wrapper": True}
        changes = {"size_asserts": False, **options}
    with config.patch(changes), with_key(values), _without_remarks():
        code: Callable[[list[Any]], Any] = compile_fx.compile_fx_inner(graph, values, **options)
    return code


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Drop a warning of Inductor: that a wrapper in C++ calls some kernels by way of Python."""
    logger = logging.getLogger("torch._inductor.ir")
    logger.addFilter(_is_no_warning)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_warning)


def _is_no_warning(record: logging.LogRecord) -> bool:
    return record.levelno != logging.WARNING


@contextlib.contextmanager
def with_key(values: Sequence[object]) -> Iterator[None]:
    """Let Inductor store a graph for ``values`` on disk, under a key that is the same in every
    process.

    It does so for fake tensors of a mode that has an environment of sizes. So a mode without one
    gets one for a while. The key is the hash of a pickle. That names a memory format by the first
    imported module that shows it. Here it always has the same name.
    """
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    if mode is None:
        yield
        return
    before, named = mode.shape_env, copyreg.dispatch_table.get(torch.memory_format)
    mode.shape_env = before or ShapeEnv()
    copyreg.pickle(torch.memory_format, _by_name)
    try:
        with tracing(TracingContext(mode)):
            yield
    finally:
        mode.shape_env = before
        if named is None:
            copyreg.dispatch_table.pop(torch.memory_format, None)


def _by_name(value: torch.memory_format) -> tuple[Callable[[str], Any], tuple[str]]:
    """Reduce a memory format for pickle to its name, ``torch.channels_last``."""
    return pkgutil.resolve_name, (str(value),)


def main() -> None:
    """Answer requests until the other process closes the connection."""
    connection = Connection(int(sys.argv[1]))
    warnings.simplefilter("ignore")
    importlib.import_module("torch._inductor.compile_fx")
    connection.send(("ready", ""))
    while True:
        try:
            head, content = pickle.loads(connection.recv_bytes()), connection.recv_bytes()
        # the other process has ended, or wants no more
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, head["limit"] + GRACE)
        connection.send(_try(head, content, lambda word: connection.send((word, ""))))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _try(head: dict[str, object], content: bytes, report: Callable[[str], None]) -> tuple[str, str]:
    """Carry out one request. Return its answer. ``report``: is called with the words before it."""
    # the code that asserts layouts first, since the other one would read beyond memory
    wrappers = [False]
    if head["cpp_wrapper"]:
        wrappers = [False, True]
    for cpp_wrapper in wrappers:
        if cpp_wrapper:
            report("ran")
        # Inductor changes the graph, so it is read anew
        try:
            graph, inputs, config = _read(head, content)
        except Exception as error:
            return "unread", cause(error)
        try:
            with config:
                run = code_of(graph, inputs, cpp_wrapper=cpp_wrapper)
        except Exception as error:
            return "error", cause(error)
        report("compiled")
        fault = _run_once(run, graph, inputs)
        if fault:
            return "error", fault
    return "done", ""


def _run_once(run: Callable[[list[Any]], Any], graph: fx.GraphModule, inputs: list[Any]) -> str:
    """Run code on zeros. Return what is wrong with it, or nothing."""
    # a loop may never end on zeros
    if any(map(_has_loop, _graphs(graph))):
        return ""
    try:
        with torch._C._AutoDispatchBelowAutograd():
            run(list(map(_zeros, inputs)))
    except AssertionError as error:
        # the code asserts the layout that a kernel returns, which depends on no element
        first = str(error).strip().partition(chr(10))[0]
        return f"its code expects another layout than a kernel gives: {first}"
    # some kernels raise for zeros, which says nothing about the code
    except Exception:
        pass
    return ""


def _has_loop(graph: fx.Graph) -> bool:
    """Return whether a call of ``graph`` is a loop."""
    return any("while_loop" in str(node.target) for node in graph.nodes)


def _read(head: dict[str, Any], content: bytes) -> tuple[fx.GraphModule, list[Any], Any]:
    """Return the graph of a request, its inputs, and the context of its options."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    for name in head["operators"]:
        if name not in torch.ops:
            with contextlib.suppress(ImportError):
                # a library often calls its operators what it is called itself
                importlib.import_module(_MODULES.get(name, name))
    _set_state(head["state"])
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    loaded: Any = GraphPickler.loads(content, mode)
    graph, inputs, wanted = loaded
    config = importlib.import_module("torch._inductor.config")
    here = config.get_config_copy()
    # torch warns of each option that it will drop, when it is set
    changed = {
        name: value for name, value in wanted.items() if name not in here or here[name] != value
    }
    return _with_code(graph), inputs, config.patch(changed)


def _with_code(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module that was read, whose class has no code yet."""
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            setattr(module, name, _with_code(child))
    return fx.GraphModule(module, module.graph, "Inductor")


def _graphs(module: fx.GraphModule) -> Iterator[fx.Graph]:
    """Yield the graphs of ``module`` and of the modules in it."""
    return (part.graph for part in module.modules() if isinstance(part, fx.GraphModule))


def _zeros(value: object) -> Any:
    """Return zeros in the layout of an abstract value; of a symbol its present value."""
    if not isinstance(value, torch.Tensor):
        return _number(value)
    sizes, strides = list(map(_number, value.shape)), list(map(_number, value.stride()))
    offset = _number(value.storage_offset())
    if 0 in sizes:
        return torch.zeros(sizes, dtype=value.dtype, device=value.device)
    # as much memory as the strides reach
    last = offset + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    return torch.zeros(last + 1, dtype=value.dtype, device=value.device).as_strided(
        sizes, strides, offset
    )


def _number(size: Any) -> int:
    """Return a size; of a symbol the number that it had in the trace."""
    return size if isinstance(size, int) else size.node.hint


def _state() -> dict[str, object]:
    """Return the state of torch that generated code depends on."""
    return {
        "threads": torch.get_num_threads(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "precision": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
    }


def _set_state(state: dict[str, Any]) -> None:
    """Set what :func:`_state` has returned in the other process."""
    torch.set_num_threads(state["threads"])
    torch.use_deterministic_algorithms(
        state["deterministic"][0], warn_only=state["deterministic"][1]
    )
    # to set it, even to the same value, changes further settings
    if state["precision"] != torch.get_float32_matmul_precision():
        torch.set_float32_matmul_precision(state["precision"])
    torch.set_default_dtype(state["dtype"])
    torch.set_grad_enabled(state["grad"])


def _pickler() -> Any:
    """Return torch's pickler of graphs, extended for abstract values that are views, and for all
    symbols."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.fx import _graph_pickler as known
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    tensors, symbols, environments = (
        known._TensorPickleData,
        known._SymNodePickleData,
        known._ShapeEnvPickleData,
    )
    plain = vars(ShapeEnv()).keys() - set(_OF_ANOTHER)

    class Pickler(known.GraphPickler):
        def reducer_override(self, obj: object) -> Any:
            """Reduce ``obj`` for pickle."""
            if isinstance(obj, FakeTensor):
                # the same memory without a base: torch would send the mode of the base, too
                with torch._C._AutoDispatchBelowAutograd():
                    alone: Any = obj.detach()
                return tensors.reduce_helper(self, alone)
            if isinstance(obj, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return type(obj), (obj.node,)
            if isinstance(obj, SymNode):
                return symbols._to_sym_node, (symbols(obj),)
            if isinstance(obj, ShapeEnv):
                sent = environments.__new__(environments)
                sent.data = {name: value for name, value in vars(obj).items() if name in plain}
                return environments.unpickle, (sent, self._unpickle_state)
            return super().reducer_override(obj)

    return Pickler


if __name__ == "__main__":
    main()
