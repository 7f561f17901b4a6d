"""Ways of torch to the elements of a tensor, each as a program of `x` and of the tensor `t` that is
reached for.

    numpy(x, t)         # x * float(t.numpy().sum())

What `t` is, the check says: a value of a transform, a tensor from outside, a view of one or a
parameter. A way that writes returns what `t` holds afterwards.
"""

from __future__ import annotations

import copy
import ctypes
import io
import math
import pickle
import re
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor, nn

# untyped in torch's stubs
_dlpack: Any = torch.utils.dlpack

# --- arrays ---------------------------------------------------------------------------------------


def numpy(x: Tensor, t: Any) -> Any:
    return x * float(t.numpy().sum())


def numpy_by_force(x: Tensor, t: Any) -> Any:
    return x * float(t.numpy(force=True).sum())


def asarray(x: Tensor, t: Any) -> Any:
    return x * float(np.asarray(t).sum())


def array_method(x: Tensor, t: Any) -> Any:
    return x * float(t.__array__().sum())


def array_of_list(x: Tensor, t: Any) -> Any:
    return x * float(np.array([t, t]).sum())


def ufunc(x: Tensor, t: Any) -> Any:
    return x * float(np.sin(t).sum())


def detached_array(x: Tensor, t: Any) -> Any:
    return x * float(t.detach().numpy().sum())


def data_array(x: Tensor, t: Any) -> Any:
    return x * float(t.data.numpy().sum())


def array_on_cpu(x: Tensor, t: Any) -> Any:
    return x * float(t.detach().cpu().numpy().sum())


def array_and_back(x: Tensor, t: Any) -> Any:
    return x * torch.from_numpy(t.detach().numpy() * 2).sum()


def buffer(x: Tensor, t: Any) -> Any:
    return x * memoryview(t.detach().numpy())[0]


def bytes_and_back(x: Tensor, t: Any) -> Any:
    return x * torch.frombuffer(bytearray(t.detach().numpy().tobytes()), dtype=t.dtype).sum()


def array_written(x: Tensor, t: Any) -> Any:
    t.detach().numpy()[:] = 7.0
    return x * t.detach().sum()


def array_after_write(x: Tensor, t: Any) -> Any:
    t.detach().add_(1.0)
    return x * float(t.detach().numpy().sum())


def array_before_write(x: Tensor, t: Any) -> Any:
    array = t.detach().numpy()
    t.detach().add_(1.0)
    return x * float(array.sum())


# --- DLPack ---------------------------------------------------------------------------------------


def from_dlpack(x: Tensor, t: Any) -> Any:
    return x * _dlpack.from_dlpack(t.detach()).sum()


def array_from_dlpack(x: Tensor, t: Any) -> Any:
    return x * float(np.from_dlpack(t.detach()).sum())


def to_dlpack(x: Tensor, t: Any) -> Any:
    capsule = _dlpack.to_dlpack(t.detach())
    return x * _dlpack.from_dlpack(capsule).sum()


def dlpack_of_tensor(x: Tensor, t: Any) -> Any:
    return x * _dlpack.from_dlpack(t).sum()


def dlpack_written(x: Tensor, t: Any) -> Any:
    _dlpack.from_dlpack(t.detach()).fill_(7.0)
    return x * t.detach().sum()


# --- storages and addresses -----------------------------------------------------------------------


def address(x: Tensor, t: Any) -> Any:
    return x * sum((ctypes.c_double * t.numel()).from_address(t.data_ptr()))


def untyped_storage(x: Tensor, t: Any) -> Any:
    return x * float(sum(t.untyped_storage().tolist()))


def storage_bytes(x: Tensor, t: Any) -> Any:
    return x * float(sum(bytes(t.untyped_storage())))


def storage_element(x: Tensor, t: Any) -> Any:
    return x * t.storage()[0]


def storage_list(x: Tensor, t: Any) -> Any:
    return x * sum(t.storage().tolist())


def storage_copy(x: Tensor, t: Any) -> Any:
    return x * float(sum(t.untyped_storage().clone().tolist()))


def storage_written(x: Tensor, t: Any) -> Any:
    t.storage().fill_(7.0)
    return x * t.detach().sum()


def untyped_storage_written(x: Tensor, t: Any) -> Any:
    t.untyped_storage().fill_(0)
    return x * (1 + t.detach().sum())


def made_of_storage(x: Tensor, t: Any) -> Any:
    return x * torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).sum()


def rebuilt(x: Tensor, t: Any) -> Any:
    return x * torch._utils._rebuild_tensor(t._typed_storage(), 0, (t.numel(),), (1,)).sum()


def tensor_of_storage(x: Tensor, t: Any) -> Any:
    return x * torch.DoubleTensor(t.storage()).sum()


def shared(x: Tensor, t: Any) -> Any:
    return x * t.share_memory_().detach().sum()


def pinned(x: Tensor, t: Any) -> Any:
    if not torch.cuda.is_available():  # there is no other memory to pin
        return x * (1.0 + t.is_pinned())
    return x * t.pin_memory().sum()


# --- elements -------------------------------------------------------------------------------------


def listed(x: Tensor, t: Any) -> Any:
    return x * sum(t.tolist())


def item(x: Tensor, t: Any) -> Any:
    return x * t[0].item()


def number(x: Tensor, t: Any) -> Any:
    return x * float(t[0])


def whole_number(x: Tensor, t: Any) -> Any:
    return x * [1.0, 2.0, 3.0][int(t[0] > 0)]


def index(x: Tensor, t: Any) -> Any:
    return x * [1.0, 2.0, 3.0][(t[0] > 0).long()]


def condition(x: Tensor, t: Any) -> Any:
    return x * 2 if t.sum() > 0 else x * 3


def square_root(x: Tensor, t: Any) -> Any:
    return x * math.sqrt(t[0] * t[0])


def contained(x: Tensor, t: Any) -> Any:
    return x * (2.0 + (t[0] in t))


def iterated(x: Tensor, t: Any) -> Any:
    return x * sum(list(t))


def tensor_of_list(x: Tensor, t: Any) -> Any:
    return x * torch.tensor(t.tolist(), dtype=t.dtype).sum()


def printed(x: Tensor, t: Any) -> Any:
    return x * _numbers_in(str(t), t)


def represented(x: Tensor, t: Any) -> Any:
    return x * _numbers_in(repr(t), t)


def formatted(x: Tensor, t: Any) -> Any:
    return x * _numbers_in(f"{t}", t)


def number_formatted(x: Tensor, t: Any) -> Any:
    return x * float(f"{t.detach()[0]:.3f}")


def _numbers_in(text: str, t: Any) -> Any:
    """The sum of the elements that a text shows. One that says what the tensor is shows none."""
    if not text.startswith(("tensor(", "Parameter containing")):
        return t.detach().round(decimals=4).sum().round(decimals=4)
    shown = re.search(r"\[(.*?)\]", text, re.DOTALL)
    assert shown is not None, text
    found = torch.tensor([float(n) for n in shown[1].split(",")], dtype=torch.float64)
    return found.sum().round(decimals=4)


# --- copies ---------------------------------------------------------------------------------------


def deep_copy(x: Tensor, t: Any) -> Any:
    return x * copy.deepcopy(t).detach().sum()


def shallow_copy(x: Tensor, t: Any) -> Any:
    return x * copy.copy(t).detach().sum()


def deep_copy_written(x: Tensor, t: Any) -> Any:
    copied = copy.deepcopy(t.detach())
    copied.add_(x)
    return copied + t.detach()


def pickled(x: Tensor, t: Any) -> Any:
    return x * pickle.loads(pickle.dumps(t)).detach().sum()


def saved(x: Tensor, t: Any) -> Any:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return x * torch.load(file).detach().sum()


def sent_to_process(x: Tensor, t: Any) -> Any:
    return x * float(len(ForkingPickler.dumps(t.detach())) > 0)


def as_tensor(x: Tensor, t: Any) -> Any:
    return x * torch.as_tensor(t.detach().numpy()).sum()


def as_array_of_torch(x: Tensor, t: Any) -> Any:
    return x * torch.asarray(t).detach().sum()


def new_tensor(x: Tensor, t: Any) -> Any:
    return x * t.new_tensor(t.tolist()).sum()


# --- functions of Python over the elements --------------------------------------------------------


def applied(x: Tensor, t: Any) -> Any:
    return x * t.detach().apply_(lambda v: v + 1.0).sum()


def mapped(x: Tensor, t: Any) -> Any:
    return x * t.detach().map_(torch.ones_like(t), lambda a, b: a + b).sum()


# --- exchanges of memory --------------------------------------------------------------------------


def data_assigned(x: Tensor, t: Any) -> Any:
    t.data = x * 3
    return x * t.detach().sum()


def data_of_other_size(x: Tensor, t: Any) -> Any:
    t.data = torch.ones(2, dtype=x.dtype)
    return x * t.detach().sum()


def data_doubled(x: Tensor, t: Any) -> Any:
    t.data = t.data * x[0]
    return x * t.detach().sum()


def memory_set(x: Tensor, t: Any) -> Any:
    t.detach_().set_(x * 3)
    return x * t.sum()


def memory_set_under_no_grad(x: Tensor, t: Any) -> Any:
    with torch.no_grad():
        t.set_(torch.ones_like(t) * 3)
    return x * t.detach().sum()


def resized(x: Tensor, t: Any) -> Any:
    return x * t.detach().resize_(2).sum()


def swapped(x: Tensor, t: Any) -> Any:
    torch.utils.swap_tensors(t, x * 3)
    return x * t.detach().sum()


def vector_to_parameters(x: Tensor, t: Any) -> Any:
    nn.utils.vector_to_parameters(x * 3, [t])
    return x * t.detach().sum()


def _layer(t: Any) -> Any:
    layer = nn.Module()
    if isinstance(t, nn.Parameter):
        layer.register_parameter("t", t)
    else:
        layer.register_buffer("t", t)
    return layer


def module_to_half(x: Tensor, t: Any) -> Any:
    return x * _layer(t).half().t.detach().double().sum()


def module_to_float(x: Tensor, t: Any) -> Any:
    layer = _layer(t)
    layer.float()
    layer.double()
    return x * t.detach().sum()


def module_to_empty(x: Tensor, t: Any) -> Any:
    layer = _layer(t).to_empty(device="cpu")
    return x * layer.t.detach().fill_(2.0).sum()


def state_loaded(x: Tensor, t: Any) -> Any:
    layer = _layer(t)
    layer.load_state_dict({"t": torch.ones_like(t) * 3})
    return x * layer.t.detach().sum()


def state_assigned(x: Tensor, t: Any) -> Any:
    layer = _layer(t)
    layer.load_state_dict({"t": x * 3}, assign=True)
    return x * layer.t.detach().sum()
