"""Import a package, and list what of it can be tested.

    scan("entmax").entries[0]
    # Entry("entmax.losses.SparsemaxLossFunction", kind="old_style", parameters=(...))

No code of the package runs but its imports. A submodule that does not import is listed with its
error, and the others are read all the same.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from gen.packages.docstrings import (
    descriptions,
    domain_of,
    dtype_of,
    shape_of,
    tells_estimate,
)
from gen.torch_private.loaded_with_torch import parameters_of, registered_ops

__all__ = [
    "FUNCTION_KINDS",
    "KINDS",
    "MODULES",
    "TENSOR_NAMES",
    "Entry",
    "FailedImport",
    "Parameter",
    "Scan",
    "entry_of",
    "scan",
    "takes_tensor",
]

KINDS = {
    "function_class": "torch.autograd.Function",
    "old_style": "torch.autograd.Function, forward(ctx, ...)",
    "library_op": "torch.library",
    "module": "torch.nn.Module",
    "function": "function of tensors",
}
"""The kinds of entries, in the order in which they are listed."""

FUNCTION_KINDS = ("function_class", "old_style")
"""The kinds that are autograd Functions."""

# fmt: off
TENSOR_NAMES = frozenset([
    "x", "y", "z", "a", "b", "v", "w", "u", "q", "k", "input", "inputs", "inp", "tensor",
    "tensors", "features", "feature", "data", "source", "src", "logits", "scores", "score",
    "hidden", "state", "value", "values", "query", "key", "signal", "image", "images", "img",
    "points", "vectors", "matrix", "mat", "weight", "weights", "bias", "target", "targets",
    "label", "labels", "index", "indices", "idx", "mask", "prob", "probs", "rotmat", "rotation",
    "rotations", "quat", "quaternion", "quaternions", "cov", "covariance", "normal", "normals",
    "direction", "directions",
])
# fmt: on
"""Names of parameters that are tensors where nothing else is said."""

MODULES = "sys.modules"
"""What an expression begins with, where no attributes of the package lead to a module."""
_SKIPPED = ("__main__", "conftest", "setup", "tests", "test")
"""Submodules that are programs or tests. An import would run them."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a signature."""

    name: str
    annotation: str = ""  # as text; empty if there is none
    has_default: bool = False
    default: str | float | bool | None = None  # None also for what JSON has no form of
    description: str = ""  # what the docstring says of it


@dataclass(frozen=True)
class Entry:
    """Something of the package that can be called with tensors."""

    name: str  # entmax.losses.SparsemaxLossFunction
    kind: str  # a key of KINDS
    parameters: tuple[Parameter, ...]  # of the call; without self and ctx
    constructor: tuple[Parameter, ...] = ()  # of a module
    expression: str = ""  # Python text of what is called, or of the class of a module
    has_jvp: bool = False  # whether a Function has a formula for forward mode

    is_estimate: bool = False  # its docstring says that its gradient is not its derivative

    @property
    def is_private(self) -> bool:
        """Return whether a part of the name begins with an underscore."""
        return "._" in self.name

    @property
    def is_function(self) -> bool:
        """Return whether it is an autograd Function."""
        return self.kind in FUNCTION_KINDS

    @property
    def rank(self) -> int:
        """Return the place in the order of trials.

        What calls others comes first, then public Functions, then private ones.
        """
        if self.is_private:
            return 2
        return int(self.is_function)

    @property
    def module(self) -> str:
        """Return the module that the name begins with."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class FailedImport:
    """A submodule that does not import."""

    module: str
    error: str


@dataclass(frozen=True)
class Scan:
    """What a package has."""

    package: str
    entries: tuple[Entry, ...]
    failed_imports: tuple[FailedImport, ...]


def scan(package: str) -> Scan:
    """Import `package` and its submodules, and list what can be called with tensors.

    Raises whatever the import of the package itself raises.
    """
    ops_before = registered_ops()
    with warnings.catch_warnings():
        # The warnings of a package are no findings.
        warnings.simplefilter("ignore")
        modules, failed = _import_all(package)
    listed = _objects(package, modules)
    listed += _library_ops(registered_ops() - ops_before, modules)
    order = list(KINDS)
    _share_descriptions(listed)
    listed.sort(key=lambda entry: (entry.rank, order.index(entry.kind)))
    return Scan(package, tuple(listed), tuple(failed))


def _share_descriptions(entries: list[Entry]) -> None:
    """Describe parameters as others of the same name and the same module are described.

    Often only one of a module and the function that it calls has a docstring.
    """
    known: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        for parameter in entry.parameters:
            if parameter.description:
                of_name = known.setdefault((entry.module, parameter.name), [])
                of_name.append(parameter.description)
    for place, entry in enumerate(entries):
        described = [
            _shared(parameter, known.get((entry.module, parameter.name), ()))
            for parameter in entry.parameters
        ]
        entries[place] = replace(entry, parameters=tuple(described))


def _shared(parameter: Parameter, descriptions: Sequence[str]) -> Parameter:
    """Return a parameter with a description of others, if it has none itself.

    The descriptions of the others must all mean the same.
    """
    meanings = {(shape_of(text), dtype_of(text), domain_of(text)) for text in descriptions}
    if parameter.description or len(meanings) != 1:
        return parameter
    return replace(parameter, description=descriptions[0])


def _objects(package: str, modules: Sequence[ModuleType]) -> list[Entry]:
    """Return one entry for each object that the modules define.

    One object often has several names. It gets the name of the module that defines it. But that
    module may be private, or something else of its name may hide it.
    """
    named = []
    for module in modules:
        for name, value in sorted(vars(module).items()):
            # What a module imports from other packages is not its own.
            defined_in = str(getattr(value, "__module__", ""))
            if defined_in.partition(".")[0] == package:
                named.append((module, f"{module.__name__}.{name}", value))

    def order(candidate: tuple[ModuleType, str, Any]) -> tuple[bool, bool]:
        """Put names that a caller can write first, and of these the one of the own module."""
        module, name, value = candidate
        return not _leads_to(name, value), value.__module__ != module.__name__

    named.sort(key=order)
    # Objects are known by identity, since not all of them can be compared or hashed.
    entries: dict[int, Entry] = {}
    for module, name, value in named:
        entry = None if id(value) in entries else entry_of(name, value)
        if entry is not None:
            entries[id(value)] = entry if _leads_to(name, value) else _hidden(entry, module)
    return list(entries.values())


def _hidden(entry: Entry, module: ModuleType) -> Entry:
    """Return the entry of an object whose module something else hides, as a call finds it."""
    rest = entry.expression.removeprefix(module.__name__)
    return replace(entry, expression=f"{MODULES}[{json.dumps(module.__name__)}]{rest}")


def _leads_to(name: str, value: object) -> bool:
    """Return whether the attributes of a dotted name lead to the object.

    A package that imports a function hides the submodule of the same name.
    """
    top, *attributes = name.split(".")
    reached: object = sys.modules[top]
    for attribute in attributes:
        reached = getattr(reached, attribute, None)
    return reached is value


def _import_all(package: str) -> tuple[list[ModuleType], list[FailedImport]]:
    """Import a package and all its submodules, and return those that do and do not import."""
    top = importlib.import_module(package)
    modules, failed, waiting = [top], [], [top]
    while waiting:
        parent = waiting.pop()
        for info in pkgutil.iter_modules(getattr(parent, "__path__", ())):
            if info.name in _SKIPPED or info.name.startswith("test_"):
                continue
            name = f"{parent.__name__}.{info.name}"
            try:
                module = importlib.import_module(name)
            # An import runs code of the package, which may raise anything.
            except (Exception, SystemExit) as error:
                text = str(error).strip().partition("\n")[0]
                failed.append(FailedImport(name, f"{type(error).__name__}: {text}"))
                continue
            modules.append(module)
            waiting.append(module)
    return modules, failed


def entry_of(name: str, value: object) -> Entry | None:
    """Return the entry of an object of the package. None if it takes no tensors."""
    if inspect.isclass(value) and issubclass(value, torch.autograd.Function):
        return _function_class(name, value)
    # Private Functions are listed, because they hold derivatives. Other private objects are not.
    if "._" in name:
        return None
    if inspect.isclass(value) and issubclass(value, torch.nn.Module):
        return _module(name, value)
    if inspect.isfunction(value):
        parameters = _described(_parameters(value), value)
        if any(map(takes_tensor, parameters)):
            return Entry(
                name,
                "function",
                parameters,
                expression=name,
                is_estimate=tells_estimate(value.__doc__ or ""),
            )
    return None


def _function_class(name: str, function: type[torch.autograd.Function]) -> Entry | None:
    """Return the entry of a Function. None if it is abstract."""
    base = torch.autograd.Function
    if function.forward is base.forward:
        return None
    parameters = _described(_parameters(function.forward), function.forward, function)
    kind = "function_class"
    if function.setup_context is base.setup_context:
        kind = "old_style"
        parameters = parameters[1:]  # without ctx
    return Entry(
        name,
        kind,
        parameters,
        expression=f"{name}.apply",
        has_jvp=function.jvp is not base.jvp,
        is_estimate=tells_estimate(_docstrings(function, function.forward, function.backward)),
    )


def _module(name: str, module: type[torch.nn.Module]) -> Entry | None:
    """Return the entry of a module. None if it is abstract."""
    if module.forward is torch.nn.Module.forward:
        return None
    forward = _described(_parameters(module.forward)[1:], module.forward, module)
    return Entry(
        name,
        "module",
        forward,
        _parameters(module.__init__)[1:],
        name,
        is_estimate=tells_estimate(_docstrings(module, module.forward)),
    )


def _docstrings(value: type, *methods: Callable[..., object]) -> str:
    """Return the docstrings of a class and of some of its methods, but not one that is torch's."""
    documented = [each for each in (value, *methods) if not each.__module__.startswith("torch.")]
    return "\n".join(each.__doc__ or "" for each in documented)


def _library_ops(names: frozenset[str], modules: Sequence[ModuleType]) -> Iterator[Entry]:
    """Yield the entries of ops that the import has registered, without their overloads.

    An import also loads parts of torch, which register ops of their own. So only namespaces count
    that the sources of the package name.
    """
    sources = "\n".join(map(_source, modules))
    for name in sorted(name for name in names if "." not in name):
        namespace = re.escape(name.partition("::")[0])
        is_named = re.search(rf"""["']{namespace}(::|["'])""", sources)
        if not is_named:
            continue
        parameters = tuple(Parameter(*each) for each in parameters_of(name))
        dotted = f"torch.ops.{name.replace('::', '.')}"
        if any(map(takes_tensor, parameters)):
            yield Entry(dotted, "library_op", parameters, expression=dotted)


def _source(module: ModuleType) -> str:
    """Return the text of a module; empty for one without a text, such as an extension."""
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""


def _parameters(function: Callable[..., object]) -> tuple[Parameter, ...]:
    """Return the parameters that a call may give by position."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return ()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(
        Parameter(
            parameter.name,
            _text(parameter.annotation),
            parameter.default is not parameter.empty,
            _plain(parameter.default),
        )
        for parameter in signature.parameters.values()
        if parameter.kind in by_position
    )


def _described(
    parameters: Sequence[Parameter], *documented: Callable[..., object]
) -> tuple[Parameter, ...]:
    """Return the parameters with what the docstrings say of them. The first one that does counts.

    A docstring that a class inherits does not count, as it is that of torch.
    """
    names = [parameter.name for parameter in parameters]
    known: dict[str, str] = {}
    # the first docstring comes last, and so replaces what the others say
    for function in reversed(documented):
        known |= descriptions(inspect.cleandoc(function.__doc__ or ""), names)
    return tuple(
        replace(parameter, description=known.get(parameter.name, "")) for parameter in parameters
    )


def _plain(default: object) -> str | float | bool | None:
    """Return a default that JSON has a form of. None for any other."""
    if isinstance(default, str | int | float):
        return default
    return None


def _text(annotation: object) -> str:
    """Return an annotation as text; empty if there is none."""
    if annotation is inspect.Parameter.empty:
        return ""
    if inspect.isclass(annotation):
        return annotation.__name__
    return str(annotation)  # of typing.Union[...], __name__ would be Union alone


def takes_tensor(parameter: Parameter) -> bool:
    """Return whether a parameter is a tensor: by annotation, or else by name or description."""
    if parameter.annotation:
        return "Tensor" in parameter.annotation
    is_described = re.search(r"\b[Tt]ensor\b", parameter.description) is not None
    return (is_described or parameter.name.lower() in TENSOR_NAMES) and not parameter.has_default
