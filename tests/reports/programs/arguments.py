"""Labels and offsets out of range, sizes of 0, integers at the ends of their dtype, wrong calls."""

import math

import torch
import torch.nn.functional as F
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from tests.reports.report import report


@report("F130.1", "pytorch#191965", kernel=True)
def largest_of_a_bag_that_ends_early():
    """embedding_bag in mode max takes the last bag to the end of the indices, whatever its last
    offset is.

    With include_last_offset the last bag ends at the last offset. It is of index 1 alone.
    """
    indices, offsets = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2])
    bags = F.embedding_bag(indices, torch.eye(3), offsets, mode="max", include_last_offset=True)
    return bags[1], torch.tensor([0.0, 1.0, 0.0])


@report("F130.2", "pytorch#191965", kernel=True)
def mean_of_a_bag_that_ends_early():
    """embedding_bag in mode mean divides the sum of the last bag by the number of all indices that
    are left.

    With include_last_offset the last bag ends at the last offset. It is of index 1 alone.
    """
    indices, offsets = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2])
    bags = F.embedding_bag(indices, torch.eye(3), offsets, mode="mean", include_last_offset=True)
    return bags[1], torch.tensor([0.0, 1.0, 0.0])


@report("F130.3", "pytorch#191965", kernel=True)
def sum_of_a_bag_of_transposed_weights():
    """embedding_bag of transposed weights takes the last bag to the end of the indices.

    Of the same weights in order the last offset is where the last bag ends.
    """
    indices, offsets = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2])
    bags = F.embedding_bag(indices, torch.eye(3).T, offsets, mode="sum", include_last_offset=True)
    return bags[1], torch.tensor([0.0, 1.0, 0.0])


@report(
    "F131.1", "pytorch#193794", kernel=True, runtime="it calls the kernel, which checks no label"
)
def ctc_loss_of_a_label_out_of_range():
    """ctc_loss takes a label that there is not, and reads what lies behind the probabilities.

    nll_loss and cross_entropy refuse such a label.
    """
    rows = torch.zeros(5, 1, 3).log_softmax(-1)
    try:
        answer = F.ctc_loss(rows, torch.tensor([[3, 1]]), [5], [2]).numel()
    except (RuntimeError, IndexError):
        answer = "an error"
    return answer, "an error"


@report("F131.2", kernel=True, runtime="it calls the kernel, which checks no offset")
def segment_reduce_of_an_offset_out_of_range():
    """segment_reduce takes a negative offset, and reads what lies before the numbers.

    Lengths that do not fit are refused.
    """
    x, offsets = torch.ones(6), torch.tensor([-1, 3, 6])
    try:
        answer = torch.segment_reduce(x, "sum", offsets=offsets).numel()
    except (RuntimeError, IndexError):
        answer = "an error"
    return answer, "an error"


@report("F132.1", "pytorch#187761", kernel=True, torch="<2.14")
def chebyshev_polynomial_of_nan():
    """chebyshev_polynomial_u of NaN is the result of the element before.

    The recurrence ends at once where a number is NaN, and returns a variable that nothing has set.
    chebyshev_polynomial_t of NaN is NaN.
    """
    x, n = torch.tensor([0.5, math.nan]), torch.tensor(3.0)
    return torch.special.chebyshev_polynomial_u(x, n)[1].isnan().item(), True


@report("F132.2", "pytorch#188027", kernel=True, torch="<2.14")
def legendre_polynomial_of_nan():
    """legendre_polynomial_p of NaN is the result of the element before.

    The recurrence ends at once where a number is NaN, and returns a variable that nothing has set.
    """
    x, n = torch.tensor([0.5, math.nan]), torch.tensor(3.0)
    return torch.special.legendre_polynomial_p(x, n)[1].isnan().item(), True


@report("F133.1", kernel=True)
def pixel_unshuffle_of_no_images():
    """pixel_unshuffle of no images has the shape of its input.

    Of one image it has nine times the channels and a third of each side. The meta device says so.
    """
    return list(F.pixel_unshuffle(torch.ones(0, 1, 6, 6), 3).shape), [0, 9, 2, 2]


@report("F133.2", kernel=True)
def addmv_of_a_matrix_without_columns():
    """addmv of a number and a matrix without columns has no dimension.

    Of a matrix with columns it has one number for each row.
    """
    result = torch.addmv(torch.tensor(1.0), torch.ones(5, 0), torch.ones(0))
    return list(result.shape), [5]


@report(
    "F133.3",
    kernel=True,
    raises="cond must be a bool",
    runtime="tensors of meta run the kernels of torch",
)
def nearest_interpolation_of_no_images_on_meta():
    """interpolate of no images to the nearest pixel fails on the meta device.

    On the CPU the result has no images.
    """
    images = torch.ones(0, 3, 4, device="meta")
    return list(F.interpolate(images, (3,), mode="nearest").shape), [0, 3, 3]


@report("F134.1", kernel=True, runtime="it calls the kernel, which checks no device")
def largest_number_into_a_buffer_of_meta():
    """amax of a tensor without dimensions takes a buffer of the meta device, and writes nothing.

    Of a vector such a buffer is refused.
    """
    try:
        answer = torch.amax(torch.tensor(2.0), 0, out=torch.empty((), device="meta")).device.type
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F134.2", kernel=True, runtime="it calls the kernel, which checks no device")
def solution_into_a_buffer_of_meta():
    """solve_triangular takes a buffer of the meta device, and writes nothing.

    linalg.solve refuses such a buffer.
    """
    try:
        out = torch.empty(2, 2, device="meta")
        solution = torch.linalg.solve_triangular(torch.eye(2), torch.eye(2), upper=True, out=out)
        answer = solution.device.type
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F135.1", kernel=True, runtime="tensors of meta run the kernels of torch")
def product_of_mixed_dtypes_on_meta():
    """The meta device takes a matrix product of float32 and float64.

    The CPU refuses it.
    """
    try:
        x = torch.ones(2, 2, device="meta")
        answer = list(torch.mm(x, x.double()).shape)
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F135.2", kernel=True, runtime="tensors of meta run the kernels of torch")
def buffer_of_another_dtype_on_meta():
    """The meta device takes a buffer of another dtype for neg.

    The CPU refuses it.
    """
    try:
        x = torch.ones(2, device="meta")
        answer = list(torch.neg(x, out=x.double()).shape)
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F135.3", kernel=True, runtime="tensors of meta run the kernels of torch")
def select_scatter_of_another_shape_on_meta():
    """The meta device takes any shape of what select_scatter writes.

    The CPU refuses what does not fit. So do index_reduce and diagonal_scatter.
    """
    try:
        x = torch.ones(3, 2, device="meta")
        answer = list(torch.select_scatter(x, torch.ones(7, device="meta"), 0, 1).shape)
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F135.4", kernel=True, runtime="tensors of meta run the kernels of torch")
def huber_loss_of_mixed_dtypes_on_meta():
    """huber_loss of float32 and float64 is float64 on the meta device.

    On the CPU it is float32.
    """
    x = torch.ones(2)
    y = x.to("meta")
    expected = F.huber_loss(x, x.double(), reduction="none").dtype
    return F.huber_loss(y, y.double(), reduction="none").dtype, expected


@report("F135.5", kernel=True, runtime="tensors of meta run the kernels of torch")
def classes_as_bytes_on_meta():
    """The meta device refuses classes in bytes.

    The CPU takes them, as its error for another dtype says.
    """
    try:
        x = torch.ones(2, 3, device="meta")
        answer = list(F.cross_entropy(x, torch.ones(2, dtype=torch.uint8, device="meta")).shape)
    except RuntimeError:
        answer = "an error"
    return answer, []


@report("F136.1")
def layer_norm_of_mixed_dtypes_in_a_batch():
    """vmap of layer_norm takes weights of another dtype.

    Without vmap they are an error.
    """
    try:
        norm = vmap(lambda x, weight: F.layer_norm(x, (3,), weight))
        answer = norm(torch.ones(2, 4, 3), torch.ones(2, 3, dtype=torch.float64)).dtype
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F136.2")
def index_fill_at_a_negative_index_in_a_batch():
    """vmap of index_fill writes to another place if an index is negative.

    Without vmap the index −1 is the last place. In the batch it is that of the element before.
    """
    filled = vmap(lambda x, i: torch.index_fill(x, 0, i, 1.0))(
        torch.zeros(2, 3), torch.tensor([[-1], [0]])
    )
    return filled, torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])


@report("F136.3")
def classes_of_int32_in_a_batch():
    """vmap of nll_loss takes classes in int32.

    Without vmap they are an error.
    """
    try:
        answer = vmap(F.nll_loss)(torch.ones(2, 2, 3), torch.ones(2, 2, dtype=torch.int32)).numel()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F137.1", kernel=True, runtime="it computes with bytes, as torch does")
def softsign_of_the_least_byte():
    """softsign of the int8 number -128 is 1.008.

    |x| + 1 is computed in int8, where it is -127. softsign is -128 / 129, and between -1 and 1.
    """
    return F.softsign(torch.tensor([-128], dtype=torch.int8)), torch.tensor([-128 / 129])


@report("F137.2", kernel=True, torch="<2.14")
def sinh_of_a_vector():
    """sinh of 89 in float32 is infinite in a vector of integers.

    It is 2.2e38, below the largest float. Of one number it is right.
    """
    found = torch.sinh(torch.full((64,), 89))
    return found[:1], torch.sinh(torch.full((1,), 89.0, dtype=torch.float64)).float()


@report("F138.1", kernel=True)
def multi_margin_loss_of_no_samples():
    """multi_margin_loss of no samples is 0, or memory as it was.

    The mean of no numbers is NaN, as nll_loss and cross_entropy say.
    """
    loss = F.multi_margin_loss(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    return loss.isnan().item(), True


@report("F139.1", kernel=True)
def rank_into_a_buffer_under_a_mode():
    """matrix_rank with out= leaves its buffer as it was inside of a dispatch mode.

    Without a mode, and without out=, the rank is 2.
    """

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    out = torch.zeros((), dtype=torch.int64)
    with Passing():
        torch.linalg.matrix_rank(torch.eye(2), out=out)
    return out, torch.tensor(2)


@report("F140.1", compiled=True)
def compiled_mean_into_a_buffer_of_doubles():
    """Compiled nanmean leaves a buffer of float64 as it was.

    In eager mode the mean stands there.
    """
    mean = torch.compile(lambda x, out: torch.nanmean(x, out=out), backend="aot_eager")
    out = torch.zeros((), dtype=torch.float64)
    mean(torch.ones(3), out)
    return out, torch.tensor(1.0)


@report("F140.2", compiled=True)
def compiled_triangle_into_a_buffer_of_another_dtype():
    """Compiled triu takes a buffer of another dtype.

    In eager mode it is an error.
    """
    try:
        triangle = torch.compile(lambda x, out: torch.triu(x, out=out), backend="aot_eager")
        answer = triangle(torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.float64)).dtype
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F140.3", compiled=True)
def compiled_result_into_a_buffer_of_meta():
    """Compiled slice_scatter takes a buffer of the meta device for a result on the CPU.

    In eager mode it is an error.
    """
    try:
        scatter = torch.compile(
            lambda x, y, out: torch.slice_scatter(x, y, 0, 0, 2, out=out), backend="aot_eager"
        )
        out = torch.empty(2, 2, device="meta")
        answer = scatter(torch.ones(2, 2), torch.zeros(2, 2), out).device.type
    except RuntimeError:
        answer = "an error"
    return answer, "an error"
