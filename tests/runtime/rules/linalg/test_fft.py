"""Fourier transforms, one- and two-sided, of real and complex input."""

import pytest
import torch

from tests.runtime.rules.agreement import check

OPS = (
    "fft.fft",
    "fft.ifft",
    "fft.fft2",
    "fft.ifftn",
    "fft.rfft",
    "fft.rfft2",
    "fft.irfft",
    "fft.irfftn",
    "fft.hfft",
    "fft.ihfft",
)


@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str) -> None:
    check(name, torch.float64, limit=2)


@pytest.mark.parametrize("name", ("fft.fft2", "fft.irfft", "fft.hfftn"))
def test_agrees_with_the_engine_on_complex_input(name: str) -> None:
    check(name, torch.complex128, limit=2)
