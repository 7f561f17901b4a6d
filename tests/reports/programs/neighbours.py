"""Arguments that are too small, of which a kernel reads more than they have."""

import torch

from tests.reports.report import report

KERNEL = "it calls the kernel"


@report("F305.1", kernel=True, runtime=KERNEL)
def segments_beyond_the_data():
    """segment_reduce adds up what lies behind the data, if the last offset is too large.

    The data has four numbers, and the memory goes on with sevens. Lengths that do not fit are
    refused.
    """
    memory, offsets = torch.full((10,), 7.0), torch.tensor([0, 2, 6])
    try:
        answer = torch.segment_reduce(memory[:4], "sum", offsets=offsets).tolist()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F305.2", kernel=True, runtime=KERNEL)
def statistics_of_too_few_channels():
    """native_batch_norm takes a mean of two channels for data of three, and reads a third.

    F.batch_norm refuses it.
    """
    mean, variance = torch.zeros(2), torch.ones(2)
    try:
        normal = torch.native_batch_norm(torch.ones(4, 3), None, None, mean, variance, False, 0, 0)
        answer = normal[0].numel()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F305.3", kernel=True, runtime=KERNEL)
def weights_of_too_few_channels():
    """native_batch_norm takes weights of two channels for data of three, and reads a third.

    F.batch_norm refuses them.
    """
    few, mean, variance = torch.ones(2), torch.zeros(3), torch.ones(3)
    try:
        normal = torch.native_batch_norm(torch.ones(4, 3), few, few, mean, variance, False, 0, 0)
        answer = normal[0].numel()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F305.4", kernel=True, runtime=KERNEL)
def a_layer_with_too_few_weights():
    """lstm takes weights of 19 rows for five numbers of four gates, and reads a twentieth row.

    gru with such weights may end the process.
    """
    one = torch.ones
    state, weights = (one(1, 2, 5), one(1, 2, 5)), [one(19, 3), one(20, 5), one(20), one(20)]
    try:
        outputs = torch.lstm(one(4, 2, 3), state, weights, True, 1, 0.0, False, False, False)[0]
        answer = outputs.numel()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F305.5", kernel=True, runtime=KERNEL)
def a_weight_with_too_few_norms():
    """_weight_norm takes one norm for three rows, and reads two that lie behind it.

    The memory goes on with sevens. Of no rows, it may end the process.
    """
    memory = torch.full((10,), 7.0)
    try:
        answer = torch._weight_norm(torch.ones(3, 4), memory[:1].view(1, 1), 0)[1].tolist()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F305.6", kernel=True, runtime=KERNEL)
def a_gradient_of_fewer_rows():
    """_log_softmax_backward_data takes a result of one row for a gradient of two.

    It reads a second row behind the first one.
    """
    try:
        answer = torch.ops.aten._log_softmax_backward_data(
            torch.ones(2, 3), torch.ones(1, 3), 1, torch.float32
        ).numel()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F305.7", kernel=True, runtime=KERNEL)
def a_gradient_of_fewer_places():
    """grid_sampler_2d_backward takes a gradient of one place for a grid of four.

    The memory goes on with sevens, of which it adds up four.
    """
    memory, image, grid = torch.full((10,), 7.0), torch.ones(1, 1, 3, 3), torch.zeros(1, 2, 2, 2)
    try:
        answer = torch.ops.aten.grid_sampler_2d_backward(
            memory[:1].view(1, 1, 1, 1), image, grid, 0, 0, True, [True, True]
        )[0].sum()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F305.8", kernel=True, runtime=KERNEL)
def a_gradient_of_fewer_windows():
    """unfold_backward takes a gradient of one window where there are two, and reads the other.

    The memory goes on with sevens.
    """
    memory = torch.full((10,), 7.0)
    try:
        answer = torch.ops.aten.unfold_backward(memory[:2].view(1, 2), [4], 0, 2, 2).tolist()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F305.9", kernel=True, runtime=KERNEL)
def a_gradient_of_fewer_images():
    """reflection_pad3d_backward takes a gradient of one image for an input of two.

    The second image has the gradient of what lies behind the first one.
    """
    try:
        answer = torch.ops.aten.reflection_pad3d_backward(
            torch.ones(1, 1, 4, 4, 4), torch.ones(1, 2, 2, 2, 2), [1] * 6
        ).numel()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F306.1", kernel=True, raises="ntensor >= 3 INTERNAL ASSERT FAILED", runtime=KERNEL)
def a_mask_of_one_truth():
    """index_put with a mask without dimensions fails by an assertion of torch's own.

    An assignment to x[mask] writes to all of x.
    """
    x, mask, rows = torch.zeros(2, 3), torch.tensor(True), torch.ones(3)
    expected = x.clone()
    expected[mask] = rows
    return torch.index_put(x, (mask,), rows), expected
