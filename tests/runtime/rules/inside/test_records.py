"""Ops that change a tensor without writing to it, and names that a newer torch has removed.

Inside: the tables ``GEOMETRY``, ``METADATA`` and ``REMOVED``. A table of all ops is compared with
torch's tags, where a program shows one op at a time."""

from typing import Any

import pytest
import torch

from runtime.extend import register
from runtime.rules import record as records
from runtime.seam.surgery import GEOMETRY
from runtime.tape.inplace import METADATA


def test_what_changes_a_tensor_without_writing_to_it_is_known() -> None:
    """The two lists of such ops that stand outside of records are together torch's tag."""
    names = [
        name.split("::")[1].partition(".")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    ]
    funcs = [
        getattr(getattr(torch.ops.aten, base), which or "default", None) for base, _, which in names
    ]
    tagged = {
        func._schema.name.split("::")[1]
        for func in funcs
        if func is not None and torch.Tag.inplace_view in func.tags
    }
    # torch 2.12 has names of dimensions, which an op renames
    tagged -= {"rename_"} if hasattr(torch.Tensor, "rename_") else set()
    assert GEOMETRY | METADATA.keys() == tagged and not GEOMETRY & METADATA.keys()


def test_a_removed_op_has_no_record_where_torch_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "REMOVED", frozenset(("removed", "removed_too")))
    assert records.of_this_torch("sin removed cos removed_too") == ("sin", "cos")
    into: dict[Any, Any] = {}
    register("removed", into, nondiff=True)
    assert not into
    with pytest.raises(ValueError, match="no operator aten::cosinus"):
        register("cosinus removed", into, nondiff=True)
