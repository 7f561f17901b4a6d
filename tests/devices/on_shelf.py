"""Claims about the device `shelf`, which `test_shelf.py` runs in a process of their own."""

from __future__ import annotations

import doctest
import io
from pathlib import Path

import pytest
import torch

import tests.devices.shelf  # noqa: F401  # registers the device
from tests.devices.shelf import faults
from tests.devices.shelf.queue import QUEUE


def on_shelf(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to("shelf")


def test_a_tensor_is_torchs_own_and_lies_on_the_device() -> None:
    x = torch.ones(2, 3, device="shelf")
    assert type(x) is torch.Tensor
    assert x.device == torch.device("shelf:0")
    assert (x + 1).cpu().tolist() == [[2.0] * 3] * 2


def test_a_view_shares_memory_with_its_base() -> None:
    x = on_shelf(2, 3)
    column = x[:, 1]
    column.mul_(10)
    assert column.stride() == (3,)
    assert x.cpu().tolist() == [[0.0, 10.0, 2.0], [3.0, 40.0, 5.0]]


def test_a_result_is_there_when_the_queue_has_run_and_a_copy_waits_for_it() -> None:
    x = on_shelf(3)
    y = x + 1
    assert y.untyped_storage().block.tolist() == [0] * 12  # type: ignore[attr-defined]
    assert y.cpu().tolist() == [1.0, 2.0, 3.0]


def test_a_lazy_conjugate_is_read_as_one() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    there = x.to("shelf").conj()
    assert there.is_conj()
    assert there.cpu().tolist() == (there * 1).cpu().tolist() == x.conj().tolist()


def test_an_op_resizes_the_buffer_that_it_is_given() -> None:
    out = torch.empty(0, device="shelf")
    torch.exp(on_shelf(2, 2), out=out)
    torch.testing.assert_close(out.cpu(), on_shelf(2, 2).cpu().exp())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool, torch.float16])
@pytest.mark.parametrize("number", [2, 2.5, True])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_number_promotes_as_on_the_cpu(
    dtype: torch.dtype, number: float, shape: tuple[int, ...]
) -> None:
    x = torch.ones(shape, dtype=dtype)
    expected = x * number
    actual = (x.to("shelf") * number).cpu()
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected)


def test_a_seed_repeats_the_numbers_of_the_device_and_leaves_those_of_the_host() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = torch.randn(4, device="shelf").cpu()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(torch.randn(4, device="shelf").cpu(), first)
    torch.manual_seed(2)
    assert not torch.equal(torch.randn(4, device="shelf").cpu(), first)


def test_a_model_trains_as_on_the_cpu() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3),
        torch.nn.BatchNorm2d(3),
        torch.nn.Flatten(),
        torch.nn.Linear(12, 2),
    )
    x, losses = torch.randn(4, 2, 4, 4), []
    for device in ("cpu", "shelf"):
        copied = torch.nn.Sequential(*model)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        there = copied.to(device)
        optimizer = torch.optim.Adam(there.parameters(), 0.1)
        for _ in range(3):
            loss = there(x.to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        model.to("cpu").load_state_dict(state)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_tensor_comes_back_from_a_file() -> None:
    file = io.BytesIO()
    torch.save(on_shelf(2, 2), file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.device.type == "shelf"
    assert loaded.cpu().tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_the_example_of_the_docs_gives_what_it_says() -> None:
    page = Path(__file__).parents[2] / "docs/devices.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted == 5
    assert results.failed == 0


def test_a_fault_is_in_the_op_as_long_as_it_is_planted() -> None:
    x = on_shelf(5)
    with faults.planted("tail"):
        assert x.cos().cpu()[-1] == 0
    assert x.cos().cpu()[-1] != 0
    QUEUE.wait()
