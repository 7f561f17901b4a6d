"""Files: what is saved under the drop-in loads in plain torch and the other way round, with
storages shared, flags and attributes."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import dropin

from .compare import described


def _trained() -> Any:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.tensor([[1.0, 2.0], [3.0, 5.0]])).square().sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def _tagged(t: torch.Tensor) -> torch.Tensor:
    t.tag = "a"  # type: ignore[attr-defined]
    return t


def _x() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


SAVED: dict[str, Callable[[], Any]] = {
    "a tensor": _x,
    "one that requires grad": lambda: _x().requires_grad_(),
    "a result": lambda: _x().requires_grad_() * 2,
    "a parameter": lambda: nn.Parameter(_x()),
    "a frozen parameter": lambda: nn.Parameter(_x(), requires_grad=False),
    "a parameter with an attribute": lambda: _tagged(nn.Parameter(_x())),
    "an attribute": lambda: _tagged(_x()),
    "an attribute of one that requires grad": lambda: _tagged(_x().requires_grad_()),
    "transposed in place": lambda: _x().t_(),
    "sparse": lambda: _x().to_sparse(),
    "sparse by row": lambda: _x().to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(_x(), 0.1, 10, torch.qint8),
    "lazily conjugated": lambda: torch.tensor([1 + 2j]).conj(),
    "lazily negated": lambda: torch.tensor([1 + 2j]).conj().imag,
    "bfloat16": lambda: _x().bfloat16(),
    "on the meta device": lambda: nn.Parameter(torch.empty(3, 4, device="meta")),
    "a buffer": lambda: nn.Buffer(_x()),
    "states of a model and its optimizer": _trained,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _save(x: Any, how: str) -> bytes:
    if how == "pickle":
        return pickle.dumps(x)
    file = io.BytesIO()
    torch.save(x, file, _use_new_zipfile_serialization=how != "legacy")
    return file.getvalue()


def _load(data: bytes, how: str) -> Any:
    return (
        pickle.loads(data) if how == "pickle" else torch.load(io.BytesIO(data), weights_only=True)
    )


def _made(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("how", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("name", SAVED)
def test_a_file_reads_on_either_side(name: str, how: str) -> None:
    make = SAVED[name]
    theirs = _save(_made(make), how)
    expected = described(_load(theirs, how))
    with dropin.installed():
        ours = _save(_made(make), how)
        assert b"runtime" not in ours
        for data in (ours, theirs):
            loaded = _load(data, how)
            assert described(loaded) == expected
            assert all(
                isinstance(t, runtime.Tensor)
                for t in torch.utils._pytree.tree_leaves(loaded)
                if isinstance(t, torch.Tensor)
            )
    assert described(_load(ours, how)) == expected


def test_tensors_that_share_memory_share_it_in_the_file() -> None:
    with dropin.installed():
        x = torch.zeros(4)
        data = _save([x, x[:2], nn.Parameter(x)], "zip")
        a, b, c = _load(data, "zip")
        a.fill_(1.0)
        assert b.tolist() == [1.0, 1.0] and c.tolist() == [1.0] * 4
    a, b, c = _load(data, "zip")
    a.fill_(1.0)
    assert b.tolist() == [1.0, 1.0] and c.tolist() == [1.0] * 4


def test_a_whole_module_reads_in_plain_torch() -> None:
    with dropin.installed():
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        data = _save(model, "zip")
        numbers = [p.tolist() for p in model.parameters()]
    loaded = torch.load(io.BytesIO(data), weights_only=False)
    assert [type(p) for p in loaded.parameters()] == [nn.Parameter] * 4
    assert [p.tolist() for p in loaded.parameters()] == numbers
    loaded(torch.ones(3, 2)).sum().backward()
    assert loaded[0].weight.grad is not None


def test_tables_that_torch_made_before_do_not_outlive_the_drop_in(tmp_path: Any) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.ones(2), path)
    kinds = [type(torch.load(path, weights_only=True))]
    with dropin.installed():
        kinds.append(type(torch.load(path, weights_only=True, mmap=True, map_location="cpu")))
    kinds.append(type(torch.load(path, weights_only=True)))
    assert kinds == [torch.Tensor, runtime.Tensor, torch.Tensor]


def test_nothing_that_the_session_notes_of_a_tensor_is_saved_or_copied() -> None:
    x = runtime.tensor([[1.0, 2.0]], requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda t: None)
    (x * 2).sum().backward()
    y = (x * 2).detach().t_()
    y.add_(1)
    for t in (x, y):
        t.tag = "a"  # type: ignore[attr-defined]
        assert t.__getstate__() == {"tag": "a"}


def test_a_shallow_copy_shares_memory_and_flags_and_no_history() -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    y, z = copy.copy(x), copy.copy(x * 2)
    assert (
        y.data_ptr() == x.data_ptr()
        and y.requires_grad
        and y.is_leaf
        and z.requires_grad
        and z.is_leaf
    )
    assert isinstance(y, runtime.Tensor) and y is not x
