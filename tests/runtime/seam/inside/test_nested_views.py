"""Which ops make views of views.

Inside: ``VIEW_OPS`` of ``runtime.seam.nested_views``, a table that is compared with torch's
kernels. An op that it lacks would only make a chain of views slower."""

import torch

from runtime.rules.record import overload
from runtime.seam.nested_views import VIEW_OPS

OTHERS = {
    "detach",  # marks nothing
    *("_fw_primal", "_make_dual"),  # of torch's forward mode
    *("_indices", "_values", "indices", "values"),  # of sparse tensors
    *("ccol_indices", "col_indices", "crow_indices", "row_indices"),
    *("_nested_get_values", "_nested_view_from_buffer", "_nested_view_from_jagged"),
    *("_test_autograd_multiple_dispatch_view", "slice_inverse"),
}


def test_all_view_ops_are_known() -> None:
    marked = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "ADInplaceOrView")
    }
    views = {
        name
        for name in marked
        if not (schema := overload(name)._schema).is_mutable
        and any(r.alias_info is not None for r in schema.returns)
    }
    assert views == {*(f._name.removeprefix("aten::") for f in VIEW_OPS.values()), *OTHERS}
