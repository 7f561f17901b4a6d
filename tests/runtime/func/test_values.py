"""Python numbers out of values, outputs that are no floating-point tensors, and what else a transform hands on."""

from typing import Any

import pytest
import torch

from runtime.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

X = torch.tensor([[0.5, 1.5], [2.5, 3.5]])


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # torch's own
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x[0, 0].item(),
        lambda x: x * float(x.sum()),
        lambda x: x * int(x[1, 1]),
        lambda x: x * len(x.tolist()) + torch.tensor(x.tolist()),
        lambda x: x * 2 if torch.equal(x, X) else x,
        lambda x: x * 2 if torch.allclose(x, X) else x,
    ],
)
def test_numbers_of_a_value_are_constants(f: Any) -> None:
    torch.testing.assert_close(jvp(f, (X,), (X,)), torch.func.jvp(f, (X,), (X,)))
    torch.testing.assert_close(jacfwd(f)(X), torch.func.jacfwd(f)(X))
    torch.testing.assert_close(jacrev(f)(X), torch.func.jacrev(f)(X))
    torch.testing.assert_close(hessian(lambda x: f(x).pow(2).sum())(X), torch.func.hessian(lambda x: f(x).pow(2).sum())(X))


@pytest.mark.parametrize("f", [lambda x: x.argmax(), lambda x: (x.sum(), x > 0), lambda x: x.max(0)])
def test_a_pullback_needs_outputs_that_have_gradients(f: Any) -> None:
    transforms: list[Any] = [lambda: vjp(f, X), lambda: jacrev(f)(X), lambda: vmap(jacrev(f))(X[None])]
    for transform in transforms:
        with pytest.raises(RuntimeError, match="All outputs of f must be floating-point or complex Tensors, got Tensor with dtype torch"):
            transform()


@pytest.mark.parametrize("transform", [grad, jacrev, jacfwd])
@pytest.mark.parametrize("chunked", [False, True])
def test_aux_holds_any_leaf(transform: Any, chunked: bool) -> None:
    options = {"chunk_size": 3} if chunked and transform is not grad else {}
    derivative, aux = transform(lambda x: (x.sum(), {"n": 3, "t": [x * 2, None], "s": "word"}), has_aux=True, **options)(X)
    torch.testing.assert_close(derivative, torch.ones_like(X))
    assert (aux["n"], aux["t"][1], aux["s"]) == (3, None, "word")
    torch.testing.assert_close(aux["t"][0], X * 2)
