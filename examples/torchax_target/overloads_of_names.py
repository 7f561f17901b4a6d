"""Let torchax 0.0.13 be imported beside torch 2.13, which has no named tensors any more.

The tables of torchax for autocast and decompositions have overloads of named tensors as keys, and
its import fails where torch lacks them. Such a key then stands for another overload of the op,
which its tables have as well.
"""

import torch

OVERLOADS_OF_NAMES = {
    "all": ("dimname", "dimname_out"),
    "index_add": ("dimname",),
    "index_copy": ("dimname",),
    "index_copy_": ("dimname",),
    "index_fill": ("Dimname_Scalar", "Dimname_Tensor"),
    "index_fill_": ("Dimname_Scalar", "Dimname_Tensor"),
    "norm": ("names_ScalarOpt_dim", "names_ScalarOpt_dim_dtype", "names_dtype_out", "names_out"),
    "prod": ("dim_Dimname",),
    "std": ("correction_names", "correction_names_out", "names_dim", "names_out"),
    "std_mean": ("correction_names", "names_dim"),
    "unbind": ("Dimname",),
}
for _op, _overloads in OVERLOADS_OF_NAMES.items():
    _packet = getattr(torch.ops.aten, _op)
    for _overload in _overloads:
        if not hasattr(_packet, _overload):
            setattr(_packet, _overload, getattr(_packet, _packet.overloads()[0]))
