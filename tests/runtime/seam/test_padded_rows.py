"""Encoders of ``torch.nn`` in eval mode give the same padded rows in a captured program."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn

from runtime import jit
from runtime.aot import aot_function, make_fx, nop

# torch's own, of an encoder in eager mode
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

MASKS = {
    "at the end": [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]],
    "at the start": [[1, 1, 0, 0, 0], [0, 0, 0, 0, 1]],
    "nowhere": [[0] * 5] * 2,
    "everywhere": [[1] * 5, [0] * 5],
}


def encoder(norm: bool, trained: bool) -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    last = nn.LayerNorm(8)
    nn.init.constant_(last.bias, 0.3)
    made = nn.TransformerEncoder(layer, 2, norm=last if norm else None)
    return made.eval().requires_grad_(trained)


@pytest.mark.parametrize("compiled", [jit, lambda f: aot_function(f, nop)], ids=["jit", "aot"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad mode"])
@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
@pytest.mark.parametrize("norm", [False, True], ids=["no norm", "norm"])
@pytest.mark.parametrize("mask", MASKS)
def test_padded_rows_are_those_of_eager_mode(
    mask: str, norm: bool, trained: bool, grad: bool, compiled: Any
) -> None:
    module = encoder(norm, trained)
    x, padding = torch.arange(80.0).reshape(2, 5, 8).sin(), torch.tensor(MASKS[mask]).bool()
    with torch.set_grad_enabled(grad):
        expected = module(x, src_key_padding_mask=padding)
        found = compiled(lambda x, p: module(x, src_key_padding_mask=p))(x, padding)
    torch.testing.assert_close(
        torch.as_tensor(found.detach()), expected.detach(), rtol=1e-4, atol=1e-4, equal_nan=True
    )
    assert module.use_nested_tensor


def test_one_program_is_right_for_masks_of_both_kinds() -> None:
    module = encoder(norm=False, trained=False)
    compiled = jit(lambda x, p: module(x, src_key_padding_mask=p))
    x = torch.arange(80.0).reshape(2, 5, 8).sin()
    for mask in ("at the end", "at the start", "at the end"):
        padding = torch.tensor(MASKS[mask]).bool()
        expected = module(x, src_key_padding_mask=padding)
        torch.testing.assert_close(compiled(x, padding), expected, rtol=1e-4, atol=1e-4)


def test_a_padding_of_real_numbers_leaves_rows_out_too() -> None:
    module = encoder(norm=True, trained=False)
    x = torch.arange(80.0).reshape(2, 5, 8).sin()
    padding = torch.tensor([[0.0, 0.0, 0.0, -1.0, -torch.inf], [0.0, 0.0, 0.0, 0.0, -2.0]])
    expected = module(x, src_key_padding_mask=padding)
    found = jit(lambda x, p: module(x, src_key_padding_mask=p))(x, padding)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_norm_runs_once() -> None:
    module = encoder(norm=True, trained=False)
    runs: list[int] = []
    module.norm.register_forward_hook(lambda *_: runs.append(1))
    make_fx(lambda x, p: module(x, src_key_padding_mask=p))(
        torch.ones(2, 5, 8), torch.tensor(MASKS["at the end"]).bool()
    )
    assert len(runs) == 1


def test_a_capture_that_fails_leaves_the_method_of_torch() -> None:
    module, method = encoder(norm=False, trained=False), nn.TransformerEncoder.forward
    with pytest.raises(RuntimeError, match="embed_dim 8 didn't match"):  # that of eager mode
        jit(lambda x: module(x))(torch.ones(2, 5, 7))
    assert nn.TransformerEncoder.forward is method


def test_another_thread_has_the_method_of_torch_during_a_capture() -> None:
    module = encoder(norm=False, trained=False)
    x, padding = torch.arange(80.0).reshape(2, 5, 8).sin(), torch.tensor(MASKS["at the end"]).bool()
    expected = module(x, src_key_padding_mask=padding)
    found: list[Any] = []

    def f(y: Any) -> Any:
        thread = Thread(target=lambda: found.append(module(x, src_key_padding_mask=padding)))
        thread.start()
        thread.join()
        return y

    make_fx(f)(x)
    assert torch.equal(found[0], expected)
