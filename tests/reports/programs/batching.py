"""vmap. The right value is a loop over the batch."""

import torch
import torch.nn.functional as F
from torch.func import jvp, vjp, vmap

from tests.reports.report import report


@report("F8.1")
def tangent_of_index_fill_by_batched_indices():
    """The tangent of index_fill by its value is 0 if the index is batched and the value is not.

    index_fill is linear in the value, so the tangent by 1 fills with 1.
    """
    i, x = torch.tensor([[0, 2], [0, 1]]), torch.zeros(3)
    one = torch.tensor(1.0)
    tangent = jvp(lambda v: vmap(lambda i: torch.index_fill(x, 0, i, v))(i), (one,), (one,))[1]
    return tangent, torch.stack([torch.index_fill(x, 0, row, one) for row in i])


@report("F8.2")
def gradient_of_a_batched_select_scatter():
    """The gradient of the source of a batched select_scatter is multiplied by the size
    of the dimension.

    The source, a number, is written to one place. So its gradient by the sum is 1.
    """
    x, source = torch.zeros(2, 3), torch.zeros(2)
    gradient = vjp(vmap(lambda x, s: torch.select_scatter(x, s, 0, 1)), x, source)[1](
        torch.ones(2, 3)
    )[1]
    return gradient, torch.ones(2)


@report("F8.3")
def roll_of_numbers():
    """vmap of roll over numbers rolls the batch.

    A tensor without dimensions rolls to itself.
    """
    x = torch.tensor([1.0, 2.0, 3.0])
    return vmap(lambda x: torch.roll(x, 1))(x), x


@report("F8.4")
def gradient_of_prelu_under_two_vmaps():
    """The gradient of prelu under two vmaps takes the weight of another element of the batch.

    The input is negative, so the gradient is the weight.
    """
    x, w = -torch.arange(1.0, 5).reshape(2, 2, 1), torch.tensor([1.0, 2.0])

    def gradient(x, w):
        return vjp(lambda x: vmap(lambda x: F.prelu(x, w))(x), x)[1](torch.ones(2, 1))[0]

    return vmap(gradient)(x, w).squeeze(), w[:, None].expand(2, 2)


@report("F8.5")
def gradient_of_cdist_for_batched_cotangents():
    """The gradient of cdist is wrong if the cotangent alone is batched; so is jacrev of cdist.

    The gradient is linear in the cotangent, so one batch of them is a loop.
    """
    x, y, g = torch.randn(3, 4), torch.randn(2, 4), torch.randn(5, 3, 2)
    pull = vjp(lambda x: torch.cdist(x, y, 1.5), x)[1]
    return vmap(pull)(g)[0], torch.stack([pull(c)[0] for c in g])


@report("F9.1", torch="<2.15")
def grid_sample_with_two_batch_dimensions():
    """grid_sample has the result of another layout if its inputs are batched in
    different dimensions.

    Element i of the batch is x[:, i] sampled at grid[i].
    """
    x, grid = torch.arange(96.0).reshape(2, 3, 1, 4, 4), torch.zeros(3, 2, 5, 5, 2)
    batched = vmap(lambda x, g: F.grid_sample(x, g, align_corners=False), in_dims=(1, 0))(x, grid)
    return batched, torch.stack(
        [F.grid_sample(x[:, i], grid[i], align_corners=False) for i in range(3)]
    )


@report("F10.1", raises="The size of tensor a (15) must match the size of tensor b (5)")
def losses_without_reduction_under_two_vmaps():
    """mse_loss without reduction fails under two vmaps, one side batched once; so do huber_loss
    and smooth_l1_loss.

    It is the square of the broadcast difference.
    """
    a, b = torch.randn(2, 3, 5), torch.randn(2, 5)
    batched = vmap(vmap(lambda a, b: F.mse_loss(a, b, reduction="none"), in_dims=(0, None)))(a, b)
    return batched, (a - b[:, None]) ** 2


@report("F25.1", "pytorch#178495", torch="<2.14")
def negative_out_dims_for_an_output_that_the_batch_does_not_change():
    """out_dims=-1 makes a shape of memory that is not there, if the output does not
    depend on the batch.

    Three numbers for each of two elements, with the batch as the last dimension, have
    the shape (3, 2).
    """
    return vmap(lambda x: torch.arange(3.0), out_dims=-1)(torch.ones(2)).shape, torch.Size([3, 2])


@report("F44.1")
def convolution_of_an_empty_batch():
    """A convolution of an empty batch has a dimension too many.

    Each element has the shape (2, 4), so an empty batch of them has the shape (0, 2, 4).
    """
    w = torch.ones(2, 3, 1)
    return vmap(lambda x: F.conv1d(x, w))(torch.rand(0, 3, 4)).shape, torch.Size([0, 2, 4])


@report("F45.1", "pytorch#91403")
def triangles_of_vectors():
    """vmap takes tril and triu of vectors, and cuts the batch.

    Without vmap both refuse a vector.
    """
    answers = []
    for f in (torch.tril, torch.triu):
        try:
            answers.append(vmap(f)(torch.ones(3, 3)).sum().item())
        except RuntimeError:
            answers.append("an error")
    return answers, ["an error"] * 2


@report("F45.2")
def embedding_of_an_index_out_of_range():
    """vmap of embedding reads the weights of the next element of the batch if an index
    is out of range.

    Without vmap the index is an error.
    """
    weights = torch.arange(6.0).reshape(2, 3, 1)
    try:
        answer = vmap(F.embedding)(torch.tensor([[3], [0]]), weights)[0].item()
    except (RuntimeError, IndexError):
        answer = "an error"
    return answer, "an error"


@report("F45.3")
def index_fill_with_an_index_out_of_range():
    """vmap of index_fill writes to the next element of the batch if an index is out of range.

    Without vmap the index is an error.
    """
    try:
        answer = (
            vmap(lambda x, i: torch.index_fill(x, 0, i, 1.0))(
                torch.zeros(2, 3), torch.tensor([[3], [0]])
            )
            .sum()
            .item()
        )
    except (RuntimeError, IndexError):
        answer = "an error"
    return answer, "an error"


@report("F45.4", runtime="one_hot is a comparison under vmap, which checks no class")
def one_hot_of_a_class_out_of_range():
    """vmap of one_hot gives a row of zeros for a class that is out of range.

    Without vmap the class is an error.
    """
    try:
        answer = vmap(lambda x: F.one_hot(x, 3))(torch.tensor([[3], [0]]))[0].sum().item()
    except (RuntimeError, IndexError):
        answer = "an error"
    return answer, "an error"
