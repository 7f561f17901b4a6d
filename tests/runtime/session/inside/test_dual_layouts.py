"""Tangents of one dual level beside those of another, zeros for tangents, and shared tangents.

Inside: ``runtime.session.dual``. One thread has one dual level at a time, so that no program sees
two sets of tangents, and a copy that no write follows cannot be told from the original."""

from __future__ import annotations

import torch

import runtime
from runtime.session.dual import Tangents, empty_like_laid_out, laid_out_like, unshared


def test_zeros_are_laid_out_as_the_primal() -> None:
    plain = torch.complex(torch.ones(2, 3), torch.ones(2, 3))
    primals = (plain, plain.mT.contiguous().mT, plain.conj(), torch._neg_view(plain))
    for primal in primals:
        zeros = empty_like_laid_out(plain, primal)
        assert (zeros.stride(), zeros.is_conj(), zeros.is_neg()) == (
            primal.stride(),
            primal.is_conj(),
            primal.is_neg(),
        )
        assert not torch.count_nonzero(zeros.resolve_conj().resolve_neg())


def test_the_zeros_of_a_sparse_primal_have_its_shape_and_a_tangent_of_one_stays_as_it_is() -> None:
    sparse, t = torch.eye(2).to_sparse(), torch.ones(2, 2)
    assert empty_like_laid_out(t, sparse).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert laid_out_like(t, sparse) is t and laid_out_like(sparse, t) is sparse


def test_a_tangent_is_copied_if_an_argument_has_it() -> None:
    t, other = runtime.wrap(torch.ones(3)), runtime.wrap(torch.ones(3))
    part = t[1:]
    assert unshared(t, [other, None, [other]]) is t and unshared(None, [t]) is None
    for inputs in ([t], [None, [other, t]], [part], [[part]]):
        found = unshared(t, inputs)
        assert found is not t and found.tolist() == [1.0] * 3 and found.data_ptr() != t.data_ptr()
    both = unshared([t, None, other], [t])
    assert both[0] is not t and both[1] is None and both[2] is other
    plain = torch.ones(3)
    assert unshared(plain, [plain]) is plain


def test_tangents_belong_to_one_dual_level_and_leave_with_it() -> None:
    first, second, t = Tangents(), Tangents(), runtime.wrap(torch.ones(3))
    assert first.of(t) is None and not first.entered(t._inner)
    first.put(t._inner, "tangent")
    assert (
        first.of(t) == "tangent"
        and first.entered(t._inner)
        and second.of(t) is None
        and not second.entered(t._inner)
    )
    second.close()
    assert first.of(t) == "tangent"
    second.put(t._inner, None)
    assert first.of(t) is None and second.entered(t._inner) and second.of(t) is None
    first.close()
    assert second.entered(t._inner)
    second.close()
    assert not second.entered(t._inner)
