"""The attributes and methods of the session's tensors that do not compute: flags, gradients, data,
hooks, copies, arrays, text."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import runtime
from runtime.aot import aot_function, nop
from runtime.func import grad

from ..view_scenarios import OURS, TORCH, no_grad_view, shown


class Named(torch.Tensor):
    pass


class Slotted(torch.Tensor):
    """Has a place of its own for ``mark``, beside the dictionary of attributes."""

    __slots__ = ("mark",)


def _slotted(lib: Any, **attributes: Any) -> Any:
    x = lib.leaf(2).detach().as_subclass(Slotted)
    for name, value in attributes.items():
        setattr(x, name, value)
    return x


def _attributes(x: Any) -> Any:
    return isinstance(x, Slotted), getattr(x, "owner", None), getattr(x, "mark", None), x.tolist()


def _told(program: Callable[[Any], Any], lib: Any) -> Any:
    """What a program gives, or the type of its error; with the warnings that it makes.

    Some warnings are given once for each process, by torch as by the runtime. Here they are given
    always: others ran before this test."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                found = shown(program(lib))
            except (RuntimeError, TypeError, ValueError) as e:
                found = type(e)
    finally:
        torch.set_warn_always(always)
    return found, [w.category for w in seen]


def _set(x: Any, name: str, value: Any) -> Any:
    setattr(x, name, value)
    return x


def _integers(lib: Any) -> Any:
    return lib.tensor([1, 2])


def _complex(lib: Any) -> Any:
    return lib.tensor([1 + 2j, 3j])


def _stale(lib: Any, recorded: bool) -> Any:
    """A view that a write to its base has left behind."""
    x, base = lib.leaf(3), lib.plain(torch.zeros(3, dtype=torch.float64))
    view = base[1:]
    base.mul_(x if recorded else 2)
    return view


def _inference(lib: Any, inside: bool) -> Any:
    with torch.inference_mode():
        x = lib.plain(torch.ones(2))
        if inside:
            return x.requires_grad_().requires_grad
    return x.requires_grad_().requires_grad


FLAGS: dict[str, Callable[[Any], Any]] = {
    "a leaf": lambda lib: lib.leaf(2).requires_grad,
    "set": lambda lib: _set(lib.leaf(2).detach(), "requires_grad", True).requires_grad,
    "unset": lambda lib: _set(lib.leaf(2), "requires_grad", False).requires_grad,
    "set of complex numbers": lambda lib: _set(_complex(lib), "requires_grad", True).requires_grad,
    "unset of integers": lambda lib: _set(_integers(lib), "requires_grad", False).requires_grad,
    "set of integers": lambda lib: _set(_integers(lib), "requires_grad", True),
    "set to a number": lambda lib: _set(lib.leaf(2).detach(), "requires_grad", 1),
    "set of a result": lambda lib: _set(lib.leaf(2) * 2, "requires_grad", True),
    "deleted": lambda lib: delattr(lib.leaf(2), "requires_grad"),
    "the method": lambda lib: (x := lib.leaf(2).detach(), x.requires_grad_() is x,
        x.requires_grad_(False).requires_grad)[1:],
    "the method of integers": lambda lib: _integers(lib).requires_grad_(),
    "the method of integers that unsets": lambda lib: (
        _integers(lib).requires_grad_(False).requires_grad
    ),
    "the method of complex numbers": lambda lib: _complex(lib).requires_grad_().requires_grad,
    "the method of a result": lambda lib: (lib.leaf(2) * 2).requires_grad_().requires_grad,
    "the method of a result that unsets": lambda lib: (lib.leaf(2) * 2).requires_grad_(False),
    "of an inference tensor": lambda lib: _inference(lib, False),
    "of one inside inference mode": lambda lib: _inference(lib, True),
    "a view of other bits": lambda lib: lib.leaf(2).view(torch.int64).requires_grad,
    "a view without history": lambda lib: no_grad_view(lib.leaf(2)).requires_grad,
    "a stale view of what requires grad": lambda lib: _stale(lib, True).requires_grad,
    "a stale view of a constant": lambda lib: _stale(lib, False).requires_grad,
    "leaves": lambda lib: [t.is_leaf for t in (lib.leaf(2), lib.leaf(2) * 2, lib.leaf(2).detach())],
    "views": lambda lib: [t._is_view() for t in (lib.leaf(2), lib.leaf(2)[1:], lib.leaf(2).detach(),
        lib.leaf(2) * 1)],
    "what has lost its history": lambda lib: (y := lib.leaf(3) * 2, parts := y.unbind(), y.mul_(2),
        parts[0].requires_grad)[3],
    "the base of a view of a view": lambda lib: (y := lib.leaf(4) * 1, y[1:][1:]._base is y,
        y._base is None)[1:],
}  # fmt: skip


def _refrozen(lib: Any) -> Any:
    x = lib.leaf(2)
    y = x * 2
    x.requires_grad_(False)
    x.requires_grad_()
    y.sum().backward()
    return x.grad


def _after(lib: Any, *steps: Callable[[Any], Any]) -> Any:
    """The gradient of a leaf after these steps and a backward pass."""
    x = lib.leaf(2)
    for step in steps:
        step(x)
    (x * x).sum().backward()
    return x.grad, x.grad.requires_grad


def _of_result(lib: Any, retained: int) -> Any:
    y = lib.leaf(2) * 2
    for _ in range(retained):
        y.retain_grad()
    (y * y).sum().backward()
    return y.grad, y.retains_grad, y.is_leaf


def _used_before_its_dtype(lib: Any) -> Any:
    x = lib.leaf(2)
    y = x * x
    x.grad_dtype = torch.float32
    y.sum().backward()
    return x.grad, x.grad_dtype


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "none yet": lambda lib: lib.leaf(2).grad,
    "of a leaf": lambda lib: _after(lib),
    "added up": lambda lib: _after(lib, lambda x: (x * 3).sum().backward()),
    "of a result": lambda lib: _of_result(lib, 0),
    "retained": lambda lib: _of_result(lib, 1),
    "retained twice": lambda lib: _of_result(lib, 2),
    "retained of a leaf": lambda lib: (x := lib.leaf(2), x.retain_grad(), x.retains_grad)[2],
    "of a leaf that retains": lambda lib: _after(lib, lambda x: x.retain_grad(),
        lambda x: (x * 2).sum().backward()),
    "of another dtype of what was used": _used_before_its_dtype,
    "retained of a constant": lambda lib: lib.leaf(2).detach().retain_grad(),
    "assigned": lambda lib: _after(lib, lambda x: _set(x, "grad", lib.leaf(2).detach())),
    "assigned a plain tensor": lambda lib: _after(lib,
        lambda x: _set(x, "grad", torch.ones(2, dtype=x.dtype))),
    "assigned none": lambda lib: _after(lib, lambda x: x.sum().backward(),
        lambda x: _set(x, "grad", None)),
    "deleted": lambda lib: _after(lib, lambda x: x.sum().backward(), lambda x: delattr(x, "grad")),
    "assigned itself": lambda lib: (x := lib.leaf(2), _set(x, "grad", x))[0],
    "assigned a number": lambda lib: _set(lib.leaf(2), "grad", 1.0),
    "assigned another dtype": lambda lib: _set(lib.leaf(2), "grad", torch.ones(2)),
    "assigned another device": lambda lib: _set(lib.leaf(2), "grad",
        torch.ones(2, dtype=torch.float64, device="meta")),
    "assigned another size": lambda lib: _set(lib.leaf(2), "grad",
        torch.ones(3, dtype=torch.float64)),
    "frozen and freed again": _refrozen,
    "of another dtype": lambda lib: _after(lib, lambda x: _set(x, "grad_dtype", torch.float32)),
    "of another dtype after a use": lambda lib: _after(lib, lambda x: x * 2,
        lambda x: _set(x, "grad_dtype", torch.float32)),
    "of any dtype": lambda lib: _set(_set(lib.leaf(2), "grad_dtype", None), "grad",
        torch.ones(2)).grad,
    "the dtype": lambda lib: [x.grad_dtype for x in (lib.leaf(2),
        _set(lib.leaf(2), "grad_dtype", None))],
    "the dtype of a result": lambda lib: (lib.leaf(2) * 2).grad_dtype,
    "the dtype set to a number": lambda lib: _set(lib.leaf(2), "grad_dtype", 3),
    "another dtype than that of a gradient": lambda lib: (x := lib.leaf(2), x.sum().backward(),
        _set(x, "grad_dtype", torch.float32))[0],
    "the same dtype as that of a gradient": lambda lib: (
        x := lib.leaf(2), x.sum().backward(), _set(x, "grad_dtype", torch.float64),
        _set(x, "grad_dtype", None), x.grad,
    )[-1],
}  # fmt: skip


def _given(lib: Any, new: Any, **options: Any) -> Any:
    """A leaf that is given data between two passes."""
    x = lib.leaf(2)
    y = x * x if options.get("used") else x
    if options.get("passes"):
        x.sum().backward()
    x.data = lib.plain(new)
    found = [x, x.dtype, x.requires_grad, x._version, list(x.shape)]
    if options.get("passes"):
        x.grad = None
    (x * x).sum().backward()
    return *found, x.grad, y.is_leaf


def _written_data(lib: Any) -> Any:
    x = lib.leaf(2)
    y = x * x
    x.data.mul_(2)
    y.sum().backward()
    return x, x.grad, x._version, x.data.requires_grad


DATA: dict[str, Callable[[Any], Any]] = {
    "written": _written_data,
    "of the same sizes": lambda lib: _given(lib, torch.ones(2, dtype=torch.float64), used=True),
    "of other sizes": lambda lib: _given(lib, torch.ones(3, dtype=torch.float64)),
    "of another dtype": lambda lib: _given(lib, torch.ones(2), used=True),
    "of other sizes after a pass": lambda lib: _given(
        lib, torch.ones(3, dtype=torch.float64), passes=True
    ),
    "of another dtype after a pass": lambda lib: _given(lib, torch.ones(2), passes=True),
    "integers": lambda lib: _set(lib.leaf(2), "data", torch.tensor([1, 2])),
    "integers of a constant": lambda lib: _set(lib.leaf(2).detach(), "data", torch.tensor([1, 2])),
    "complex numbers": lambda lib: _set(lib.leaf(2), "data", torch.tensor([1j, 2])).dtype,
    "a number": lambda lib: _set(lib.leaf(2), "data", 1.0),
    "deleted": lambda lib: delattr(lib.leaf(2), "data"),
}


def _hooked(lib: Any, of: str, how: str) -> Any:
    seen: list[Any] = []
    x = lib.leaf(2)
    t = {"leaf": x, "result": x * 2, "constant": x.detach()}[of]
    if how == "post":
        handle = t.register_post_accumulate_grad_hook(lambda p: seen.append(shown(p.grad)))
    elif how == "assigned":
        t._backward_hooks = {1: lambda g: g * 3}
        handle = None
    elif how == "deleted":
        del t._backward_hooks
    elif how == "cleared":
        t.register_hook(lambda g: g * 7)
        t._backward_hooks = None
        handle = None
    elif how == "around a write":
        t.register_hook(lambda g: g * 7)
        with torch.no_grad() if of == "leaf" else torch.enable_grad():
            t.mul_(3)
        handle = t.register_hook(lambda g: g * 10)
    else:
        handle = t.register_hook(lambda g: g * 10)
        t.register_hook(lambda g: seen.append(shown(g)))
    hooks = t._backward_hooks
    (t * t + x).sum().backward()
    before = shown(x.grad)
    if handle is not None:
        handle.remove()
        (x * x).sum().backward()
    return before, shown(x.grad), seen, hooks is None or len(hooks)


HOOKS = [
    (of, how)
    for of in ("leaf", "result", "constant")
    for how in ("plain", "post", "deleted", "around a write")
]
HOOKS += [("leaf", "assigned"), ("leaf", "cleared")]


def _copied(x: Any, how: Callable[[Any], Any]) -> Any:
    x.owner = "mine"
    y = how(x)
    shares = y.data_ptr() == x.data_ptr()
    return y, y.owner, y.requires_grad, y.is_leaf, y is x, shares, y.grad is None


ATTRIBUTES: list[dict[str, int]] = [{}, {"mark": 1}, {"owner": 2}, {"mark": 1, "owner": 2}]


def _shallow_slotted(attributes: dict[str, int], lib: Any) -> Any:
    return _attributes(copy.copy(_slotted(lib, **attributes)))


def _state_slotted(attributes: dict[str, int], lib: Any) -> Any:
    return _slotted(lib, **attributes).__getstate__()


COPIES: dict[str, Callable[[Any], Any]] = {
    "shallow": lambda lib: _copied(lib.leaf(2), copy.copy),
    "shallow constant": lambda lib: _copied(lib.leaf(2).detach(), copy.copy),
    "deep": lambda lib: _copied(lib.leaf(2), copy.deepcopy),
    "deep constant": lambda lib: _copied(lib.leaf(2).detach(), copy.deepcopy),
    "deep of a result": lambda lib: copy.deepcopy(lib.leaf(2) * 2),
    "deep twice in a list": lambda lib: (x := lib.leaf(2), y := copy.deepcopy([x, x]), y[0] is y[1],
        y[0] is x)[2:],
    "deep of a parameter": lambda lib: (
        p := nn.Parameter(lib.leaf(2).detach(), requires_grad=False), y := copy.deepcopy([p, p]),
        y[0] is y[1], isinstance(y[0], nn.Parameter), y[0].requires_grad,
        y[0].data_ptr() == p.data_ptr(),
    )[2:],
    "an array": lambda lib: lib.leaf(2).detach().numpy().tolist(),
    "an array of what requires grad": lambda lib: lib.leaf(2).numpy(),
    "an array by force": lambda lib: (lib.leaf(2) * 1j).conj().numpy(force=True).tolist(),
    "an array under no_grad": lambda lib: (
        torch.no_grad()(lambda x: x.numpy().tolist())(lib.leaf(2))
    ),
    "an array of what is conjugate": lambda lib: (lib.leaf(2) * 1j).detach().conj().numpy(),
    "an array of a dtype": lambda lib: (a := np.asarray(lib.leaf(2).detach(), dtype=np.int32),
        a.tolist(), a.dtype.name)[1:],
    "an array that is a view": lambda lib: (
        x := lib.leaf(2).detach(), a := x.__array__(), b := x.__array__(np.dtype("float64")),
        x.mul_(2), a.tolist(), b.tolist(),
    )[4:],
    "arrays of float32": lambda lib: (
        x := lib.leaf(2).detach().float(), x.__array__().dtype.name,
        x.__array__(np.dtype("int32")).dtype.name,
    )[1:],
    "a copy that is known": lambda lib: (x := lib.leaf(2), x.__deepcopy__({id(x): 3}))[1],
    "deep of a parameter with an attribute": lambda lib: (
        p := _set(nn.Parameter(lib.leaf(2).detach()), "owner", "me"), p.sum().backward(),
        y := copy.deepcopy(p), hasattr(y, "owner"), y.grad,
    )[3:],
    "a class": lambda lib: (
        x := lib.leaf(2), y := x.as_subclass(Named), isinstance(y, Named), y.requires_grad,
        y.is_leaf, y.data_ptr() == x.data_ptr(),
    )[2:],
    "a backward of a matrix": lambda lib: (
        x := lib.leaf(2), (x * x).backward(torch.ones(2, dtype=x.dtype), True, create_graph=True),
        x.grad.requires_grad, x.grad,
    )[2:],
    "a backward to an input": lambda lib: (x := lib.leaf(2), y := x * 2,
        (y * y).sum().backward(inputs=[y]), x.grad, y.grad)[3:],
    **{f"shallow with {[*given]}": functools.partial(_shallow_slotted, given)
       for given in ATTRIBUTES},
    **{f"state with {[*given]}": functools.partial(_state_slotted, given) for given in ATTRIBUTES},
    "state of a leaf": lambda lib: lib.leaf(2).__getstate__(),
    "state of a leaf with an attribute": lambda lib: _set(lib.leaf(2), "owner", 1).__getstate__(),
    "deep with a gradient": lambda lib: (
        x := lib.leaf(2), (x * x).sum().backward(), y := copy.deepcopy([x, x]), y[0].grad,
        y[0].grad is x.grad, y[0] is y[1],
    )[3:],
    "deep of aliases": lambda lib: (
        x := lib.leaf(3).detach(), y := copy.deepcopy([x, x[1:]]), y[0].add_(1), y[1],
    )[3:],
    "deep attributes": lambda lib: (
        x := _set(lib.leaf(2), "owner", [1]), y := copy.deepcopy(x), y.owner, y.owner is x.owner,
    )[2:],
    "deep of a frozen parameter": lambda lib: (
        y := copy.deepcopy(nn.Parameter(lib.leaf(2).detach(), False)), y.requires_grad, y.is_leaf,
    )[1:],
    "new ones": lambda lib: [(t, t.requires_grad, t.dtype) for t in (
        lib.leaf(2).new_ones(2), lib.leaf(2).new_zeros(2, requires_grad=True),
        lib.leaf(2).new_full((2,), 3.0, dtype=torch.float32),
    )],
}  # fmt: skip


@pytest.mark.parametrize(
    "programs", [FLAGS, GRADIENTS, DATA, COPIES], ids=["flags", "gradients", "data", "copies"]
)
def test_a_tensor_answers_as_torchs(programs: dict[str, Callable[[Any], Any]]) -> None:
    expected = {name: _told(program, TORCH) for name, program in programs.items()}
    assert {name: _told(program, OURS) for name, program in programs.items()} == expected


def test_hooks_are_called_and_kept_as_torchs_are() -> None:
    for of, how in HOOKS:
        program = functools.partial(_hooked, of=of, how=how)
        assert _told(program, OURS) == _told(program, TORCH), (of, how)


def _text(made: Callable[[Any], Any], lib: Any) -> str:
    return repr(made(lib))


TEXTS: dict[str, Callable[[Any], Any]] = {
    "leaf": lambda lib: lib.leaf(2), "constant": lambda lib: lib.leaf(2).detach(),
    "result": lambda lib: lib.leaf(2) * 2,
    "frozen parameter": lambda lib: nn.Parameter(lib.leaf(2).detach(), requires_grad=False),
    "parameter": lambda lib: nn.Parameter(lib.leaf(2).detach()),
    "sparse": lambda lib: lib.leaf(2, 2).detach().to_sparse(),
    "lost history": lambda lib: (y := lib.leaf(3) * 2, parts := y.unbind(), y.mul_(2), parts[0])[3],
    "sparse result": lambda lib: lib.leaf(2, 2).to_sparse(),
    "matrix": lambda lib: lib.leaf(2, 3) * 2, "integers": _integers,
    "a class": lambda lib: lib.leaf(2).detach().as_subclass(Named),
    "a class with a history": lambda lib: lib.leaf(2).as_subclass(Named) * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_tensor_is_torchs(name: str) -> None:
    assert repr(TEXTS[name](OURS)) == repr(TEXTS[name](TORCH))


def test_the_text_of_a_dual_tensor_has_the_tangent() -> None:
    texts = []
    for made, lib in ((runtime.autograd.forward_ad, OURS), (torch.autograd.forward_ad, TORCH)):
        with made.dual_level():
            texts.append(
                repr(made.make_dual(lib.leaf(2).detach(), torch.ones(2, dtype=torch.float64)))
            )
    assert texts[0] == texts[1] and "tangent=" in texts[0]


@pytest.mark.parametrize("lib", [TORCH, OURS], ids=["torch", "ours"])
def test_what_cannot_require_grad_or_have_a_dtype_of_its_gradient_is_told(lib: Any) -> None:
    with pytest.raises(
        RuntimeError, match="only Tensors of floating point and complex dtype can require gradients"
    ):
        _integers(lib).requires_grad = True
    with (
        pytest.raises(RuntimeError, match="can only be set on leaf tensors"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        (lib.leaf(2) * 2).grad_dtype = torch.float32


ONCE: dict[str, Callable[[Any], Any]] = {
    "reads grad of": lambda w: w.grad,
    "assigns grad of": lambda w: setattr(w, "grad", None),
    r"calls retain_grad\(\) of": lambda w: w.retain_grad(),
    "registers a post accumulate grad hook of": lambda w: w.register_post_accumulate_grad_hook(
        lambda p: None
    ),
}


@pytest.mark.parametrize("what", ONCE)
def test_what_a_compiled_program_would_do_in_its_capture_alone_is_refused(what: str) -> None:
    w = runtime.tensor([1.0, 2.0], requires_grad=True)

    def program(x: Any) -> Any:
        ONCE[what](w)
        return x * w

    with pytest.raises(RuntimeError, match=f"the program {what} a tensor that it closes over"):
        aot_function(program, nop)(torch.ones(2))


def test_data_are_no_value_of_a_transform() -> None:
    x = runtime.tensor([1.0, 2.0])

    def program(t: Any) -> Any:
        x.data = t
        return t.sum()

    with pytest.raises(RuntimeError, match="cannot be set to a value of grad"):
        grad(program)(torch.ones(2))


def test_wrapping_asks_no_method_of_the_class_to_detach() -> None:
    seen: list[Any] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    watched = torch.ones(2, requires_grad=True).as_subclass(Watched)
    seen.clear()
    found: Any = runtime.wrap(watched)
    assert isinstance(found, Watched) and torch.Tensor.detach not in seen


def test_what_is_wrapped_keeps_its_class_and_its_memory_and_loses_its_history() -> None:
    plain = torch.ones(2, requires_grad=True)
    result, named = plain * 2, torch.ones(2).as_subclass(Named)
    for t in (plain, result, named):
        found = runtime.wrap(t)
        assert (found.requires_grad, found.is_leaf, found.data_ptr()) == (
            False,
            True,
            t.data_ptr(),
        ) and runtime.wrap(found) is found
    assert (
        isinstance(runtime.wrap(named), Named)
        and type(runtime.unwrap(runtime.wrap(named))) is torch.Tensor
    )
    assert runtime.wrap(named, requires_grad=True).requires_grad and runtime.unwrap(plain) is plain


def test_a_tensor_is_made_with_its_dtype_its_device_and_its_flag() -> None:
    made = runtime.tensor([1.0, 2.0], dtype=torch.float64, device="meta", requires_grad=True)
    assert (made.dtype, made.device.type, made.requires_grad) == (torch.float64, "meta", True)
    assert not runtime.tensor([1.0]).requires_grad


@pytest.mark.parametrize("transform", [runtime.func.grad, torch.func.grad])
def test_a_deep_copy_of_a_sparse_tensor_inside_a_transform_takes_what_is_written_to_it(
    transform: Any,
) -> None:
    buffer = torch.eye(2).to_sparse()
    if transform is runtime.func.grad:
        buffer = runtime.wrap(buffer)

    def energy(x: Any) -> Any:
        copied = copy.deepcopy(buffer)
        copied.add_(x.to_sparse())
        return copied.to_dense().pow(2).sum()

    assert transform(energy)(torch.ones(2, 2)).tolist() == [[4.0, 2.0], [2.0, 4.0]]
    assert buffer.to_dense().tolist() == [[1.0, 0.0], [0.0, 1.0]]


def _parameter(lib: Any, **attributes: Any) -> Any:
    p = nn.Parameter(lib.leaf(2).detach(), requires_grad=attributes.pop("requires_grad", True))
    for name, value in attributes.items():
        setattr(p, name, value)
    return p


PICKLED: dict[str, Callable[[Any], Any]] = {
    "leaf": lambda lib: lib.leaf(2),
    "constant": lambda lib: lib.leaf(2).detach(),
    "transposed": lambda lib: lib.leaf(2, 3).detach().t(),
    "conjugate": lambda lib: (lib.leaf(2).detach() * 1j).conj(),
    "sparse": lambda lib: lib.leaf(2, 2).detach().to_sparse(),
    "parameter": _parameter,
    "frozen parameter": lambda lib: _parameter(lib, requires_grad=False),
    "parameter with an attribute": lambda lib: _parameter(lib, owner="me"),
    "leaf with an attribute": lambda lib: _set(lib.leaf(2), "owner", "me"),
    "constant with an attribute": lambda lib: _set(lib.leaf(2).detach(), "owner", "me"),
    "frozen parameter with an attribute": lambda lib: _parameter(
        lib, requires_grad=False, owner="me"
    ),
    "leaf of whole numbers": lambda lib: lib.leaf(2).detach().long(),
}


@pytest.mark.parametrize(
    "attributes", [{}, {"mark": 1}, {"owner": 2}, {"mark": 1, "owner": 2}], ids=str
)
def test_slots_and_attributes_of_a_class_are_pickled(attributes: dict[str, int]) -> None:
    found = [
        _attributes(pickle.loads(pickle.dumps(_slotted(lib, **attributes))))
        for lib in (TORCH, OURS)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("attributes", [{}, {"mark": 1}, {"owner": [2]}], ids=str)
def test_slots_and_attributes_of_a_class_are_copied_deep(attributes: dict[str, Any]) -> None:
    """Torch refuses a deep copy of such a class, which does not say how it is made."""
    with pytest.raises(RuntimeError, match="new_empty"):
        copy.deepcopy(_slotted(TORCH, **attributes))
    x = _slotted(OURS, **attributes)
    copied = copy.deepcopy(x)
    assert _attributes(copied) == _attributes(x)
    assert "owner" not in attributes or copied.owner is not x.owner


def test_a_tensor_with_hooks_is_pickled_with_torchs_warning() -> None:
    for lib in (TORCH, OURS):
        x = lib.leaf(2)
        x.register_hook(lambda g: g)
        with pytest.warns(UserWarning, match="backward hook .* will not be serialized"):
            pickle.dumps(x)


@pytest.mark.parametrize("name", PICKLED)
def test_what_is_pickled_comes_back_as_torchs(name: str) -> None:
    found = []
    for lib in (TORCH, OURS):
        back: Any = pickle.loads(pickle.dumps(PICKLED[name](lib)))
        assert type(back) in (torch.Tensor, nn.Parameter)
        found.append(
            (
                type(back),
                back.requires_grad,
                back.is_conj(),
                getattr(back, "owner", None),
                back.layout,
                back.to_dense().tolist(),
            )
        )
    assert found[0] == found[1]


def test_a_buffer_made_by_a_tensor_of_the_session_inside_a_transform_takes_values_of_it() -> None:
    like = OURS.leaf(2).detach()

    def energy(x: Any) -> Any:
        buffer = like.new_zeros(2)
        buffer.add_(x)
        return buffer.pow(2).sum()

    assert grad(energy)(torch.tensor([1.0, 2.0], dtype=torch.float64)).tolist() == [2.0, 4.0]
    assert like.new_zeros(2, requires_grad=True).is_leaf
