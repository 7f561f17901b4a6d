"""Call modules as functions of their state: ``functional_call``, ``stack_module_state``,
``replace_all_batch_norm_modules_``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from ..torch_private.native_functions import AnyBatchNorm

_ABSENT: Any = object()


def functional_call(
    module: nn.Module,
    parameter_and_buffer_dicts: Mapping[str, torch.Tensor] | Sequence[Mapping[str, torch.Tensor]],
    args: object = None,
    kwargs: Mapping[str, object] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call ``module`` with the given tensors in place of its parameters and buffers of these names,
    as ``torch.func.functional_call``.

    >>> parameters = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
    >>> functional_call(torch.nn.Linear(2, 1), parameters, torch.ones(2))
    tensor([2.])

    The module gets its own tensors back afterwards, also after an exception. If the module replaces
    one of the tensors during the call, the new one is stored in the dict that has the old one.
    ``args``: a tuple, or one argument that is no tuple. ``tie_weights``: if the module
    has a tensor under several names, a replacement under one name holds for all of them. Different
    replacements are a ``ValueError``. ``strict``: missing and unexpected names are errors.
    """
    dicts = _as_dicts(parameter_and_buffer_dicts)
    for kind, what in (
        (torch.jit.ScriptModule, "Jitted modules"),
        (nn.DataParallel, "nn.DataParallel module"),
    ):
        if isinstance(module, kind):
            raise RuntimeError(f"The stateless API can't be used with {what}")
    tensors: dict[str, torch.Tensor] = {}
    for mapping in dicts:
        tensors.update(mapping)
    if tie_weights:
        tensors = _tie(module, tensors)
    if strict:
        _check_names(module, tensors)
    if args is None:
        args = ()
    positional = args if isinstance(args, tuple) else (args,)
    with _Swapped(module, tensors, dicts):
        return module(*positional, **(kwargs or {}))


def _as_dicts(state: object) -> Sequence[Mapping[str, torch.Tensor]]:
    """Return the dicts of tensors of a call, one or several. Raise if a name is in two of them."""
    if isinstance(state, Mapping):
        dicts: Sequence[Mapping[str, torch.Tensor]] = (state,)
    elif isinstance(state, Sequence):
        dicts = state
    else:
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, "
            f"but got {type(state)}"
        )
    if not all(isinstance(mapping, Mapping) for mapping in dicts):
        raise ValueError("Expected all elements of parameter_and_buffer_dicts to be dictionaries")
    times = Counter(chain.from_iterable(dicts))
    repeated = sorted(name for name, count in times.items() if count > 1)
    if repeated:
        raise ValueError(
            f"{repeated} appeared in multiple dictionaries; "
            "behavior of functional call is ambiguous"
        )
    return dicts


def _named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters and buffers by name. A shared tensor is under each of its names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _tie(module: nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``tensors`` with each of them under all names of the module's tensor that it
    replaces."""
    # the names of each tensor of the module
    groups: dict[int, list[str]] = {}
    for name, tensor in _named_tensors(module).items():
        groups.setdefault(id(tensor), []).append(name)
    out = dict(tensors)
    for group in groups.values():
        present = [name for name in group if name in tensors]
        if not present:
            continue
        if len({id(tensors[name]) for name in present}) > 1:
            raise ValueError(
                f"functional_call got multiple values for keys {sorted(present)}, which are tied. "
                "tie_weights=False keeps them apart."
            )
        out.update(dict.fromkeys(group, tensors[present[0]]))
    return out


def _check_names(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise if ``tensors`` has other names than the module, as ``strict=True`` demands."""
    names_of_module = set(_named_tensors(module))
    problems = [
        f"\n\t{what} key(s): {', '.join(map(repr, sorted(names)))}."
        for what, names in (
            ("Unexpected", tensors.keys() - names_of_module),
            ("Missing", names_of_module - tensors.keys()),
        )
        if names
    ]
    if problems:
        raise RuntimeError(
            f"Error(s) in reparametrizing for {type(module).__name__}:{''.join(problems)}"
        )


class _Swapped:
    """A context in which a module has other tensors in place of its own."""

    def __init__(
        self,
        module: nn.Module,
        tensors: Mapping[str, torch.Tensor],
        dicts: Sequence[Mapping[str, torch.Tensor]],
    ) -> None:
        # raises before the module is changed
        self.places = {name: _place(module, name) for name in tensors}
        for name, tensor in tensors.items():
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name}: {tensor} is not an instance of torch.Tensor")
        self.tensors = tensors
        # the dicts of the caller, from which the tensors come
        self.dicts = dicts
        self.before: dict[str, Any] = {}
        # a recurrent layer lists its weights once more, for its fused kernel
        layers = {
            id(owner): owner for owner, _ in self.places.values() if isinstance(owner, nn.RNNBase)
        }
        self.caches = [
            (layer, layer._flat_weights, list(layer._flat_weights), layer._flat_weight_refs)
            for layer in layers.values()
        ]

    def __enter__(self) -> None:
        for name, (module, attribute) in self.places.items():
            self.before[name] = _exchange(module, attribute, self.tensors[name])

    def __exit__(self, *exc: object) -> None:
        """Give the module its tensors back, and the caller's dicts what it has bound in place of
        theirs."""
        after = {}
        # in reverse, since each replaced property gave the module one more class
        for name, (module, attribute) in reversed(self.places.items()):
            after[name] = _exchange(module, attribute, self.before[name])
        # a recurrent layer lists its weights anew in a call, and would hold the given ones
        for layer, weights, own, refs in self.caches:
            weights[:] = own
            layer._flat_weights, layer._flat_weight_refs = weights, refs
        # a module that rebinds an attribute (a counter, a statistic) gives it to the caller's dict
        for mapping in self.dicts:
            if not isinstance(mapping, MutableMapping):
                continue
            for name in mapping:
                if after[name] is not _ABSENT and after[name] is not mapping[name]:
                    mapping[name] = after[name]


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule and the attribute name for the dotted ``name``."""
    if not name:
        raise KeyError('tensor name can\'t be empty string ""')
    *path, attribute = name.split(".")
    for depth, part in enumerate(path, 1):
        child = getattr(module, part, None)
        if child is None:
            raise AttributeError(f"{type(module).__name__} has no attribute `{part}`")
        if not isinstance(child, nn.Module):
            raise TypeError(
                f"submodule `{'.'.join(path[:depth])}`: "
                f"{child!r} is not an instance of torch.nn.Module"
            )
        module = child
    now = getattr(module, attribute, None)
    if now is not None and not isinstance(now, torch.Tensor):
        raise TypeError(f"attribute `{attribute}`: {now!r} is not an instance of torch.Tensor")
    return module, attribute


class _Hidden:
    """The original class of a module whose property a tensor replaces.

    A property (a parametrized weight) is an attribute of the class. So the module has another class
    during the call.
    """

    def __init__(self, cls: type[nn.Module]) -> None:
        self.cls = cls


def _exchange(module: nn.Module, name: str, value: Any) -> object:
    """Store ``value`` under ``name`` and return what was there. ``_ABSENT`` means nothing.

    This bypasses ``__setattr__``, which accepts only an ``nn.Parameter`` in place of a parameter.
    """
    if isinstance(value, _Hidden):
        old = vars(type(module))[name]
        module.__class__ = value.cls
        return old
    cls = type(module)
    if isinstance(getattr(cls, name, None), property):
        module.__class__ = type(cls.__name__, (cls,), {name: value})
        return _Hidden(cls)
    # a parameter under a new name becomes one of the parameters, as an assignment would do
    default = module._parameters if isinstance(value, nn.Parameter) else module.__dict__
    if name in module.__dict__:
        default = module.__dict__
    table = next(
        (tensors for tensors in (module._parameters, module._buffers) if name in tensors), default
    )
    if value is _ABSENT:
        return table.pop(name, _ABSENT)
    old = table.get(name, _ABSENT)
    table[name] = value
    return old


def stack_module_state(
    models: Sequence[nn.Module] | nn.ModuleList,
) -> tuple[dict[str, object], dict[str, object]]:
    """Stack the parameters of ``models`` by name along a new first dimension, and the buffers.
    As ``torch.func.stack_module_state``.

    The stacked parameters are new leaves. Models of different classes, modes or shapes are
    a ``RuntimeError``.

    >>> models = [torch.nn.Linear(2, 1) for _ in range(3)]
    >>> parameters, buffers = stack_module_state(models)
    >>> parameters["weight"].shape
    torch.Size([3, 1, 2])
    """
    if len(models) == 0:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    modes = [model.training for model in models]
    if any(modes) and not all(modes):
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if any(type(model) is not type(models[0]) for model in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    parameters = [dict(model.named_parameters()) for model in models]
    buffers = [dict(model.named_buffers()) for model in models]
    return _stack_by_name(parameters), _stack_by_name(buffers)


def _stack_by_name(states: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, object]:
    """Return the tensors of each name, stacked."""
    stacked: dict[str, Any] = {}
    for name in states[0]:
        stacked[name] = _stack(name, [state[name] for state in states])
    return stacked


def _stack(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack the tensors that the models have under ``name``, as a new leaf."""
    # one stacked tensor has one flag
    requires_grad = {tensor.requires_grad for tensor in tensors}
    if len(requires_grad) > 1:
        raise RuntimeError(f"Expected {name} from each model to have the same .requires_grad")
    return torch.stack([tensor.detach() for tensor in tensors]).requires_grad_(requires_grad.pop())


def replace_all_batch_norm_modules_(root: nn.Module) -> nn.Module:
    """Make the batch norms in ``root`` stop tracking running statistics, as
    ``torch.func.replace_all_batch_norm_modules_``.

    A vmap cannot update statistics that its elements share. Works in place and returns ``root``.
    """
    for module in root.modules():
        if isinstance(module, AnyBatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return root
