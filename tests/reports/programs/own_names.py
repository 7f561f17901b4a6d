"""Kernels that are called by their own names with wrong arguments: they end the process, write to
memory of others, or meet an assertion of their own.

A call that may end the process is made in a fork of it. The answer is then the signal.
"""

import contextlib
import os

import torch

from tests.reports.report import report

KERNEL = "it calls the kernel"


@report("F330.1", "pytorch#145070", "pytorch#194803", kernel=True, runtime=KERNEL)
def a_gradient_of_more_images():
    """_adaptive_avg_pool2d_backward takes a gradient of a million images for an input of one.

    It writes those of the other ones behind its result, 16 GB of them, which ends the process.
    """
    grad, x = torch.ones(1_000_000, 1, 1, 1), torch.ones(1, 1, 64, 64)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten._adaptive_avg_pool2d_backward(grad, x)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.2", kernel=True, runtime=KERNEL)
def a_row_that_there_is_not():
    """_convert_indices_from_coo_to_csr takes a row of -(2**45).

    It writes as far before its result, which ends the process.
    """
    rows = torch.full((3,), -(2**45))
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch._convert_indices_from_coo_to_csr(rows, 4)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.3", "pytorch#141004", kernel=True, runtime=KERNEL)
def a_pointer_beyond_the_columns():
    """_convert_indices_from_csr_to_coo takes a row of 2**45 columns, of which there are two.

    It writes all of them to its result, which ends the process.
    """
    rows, columns = torch.tensor([0, 2**45, 2]), torch.tensor([0, 1])
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch._convert_indices_from_csr_to_coo(rows, columns)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.4", kernel=True, runtime=KERNEL)
def a_dimension_that_there_is_not():
    """_fft_c2c takes dimension 2**31 of a tensor of two, and ends the process.

    torch.fft.fft refuses it.
    """
    x = torch.ones(2, 3, dtype=torch.complex64)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch._fft_c2c(x, [2**31], 0, True)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.5", kernel=True, runtime=KERNEL)
def a_stack_of_nothing():
    """_stack of an empty list ends the process.

    torch.stack refuses it.
    """
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten._stack([])
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.6", kernel=True, runtime=KERNEL)
def a_copy_of_nothing():
    """_foreach_copy of one tensor to an empty list ends the process.

    _foreach_copy_ refuses it.
    """
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten._foreach_copy([], [torch.ones(2)])
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.7", "pytorch#85217", kernel=True, runtime=KERNEL)
def statistics_that_there_are_not():
    """_native_batch_norm_legit without statistics, and not in training, ends the process.

    It reads the statistics that it did not get.
    """
    x = torch.ones(2, 3)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, False, 0.1, 1e-5)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.8", kernel=True, runtime=KERNEL)
def a_gradient_of_no_classes():
    """nll_loss_backward takes an input without classes, and ends the process.

    It writes the gradient of class 0.
    """
    x, y, t = torch.ones(3, 0), torch.zeros(3, dtype=torch.int64), torch.tensor(3.0)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten.nll_loss_backward(torch.ones(3), x, y, None, 0, -100, t)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.9", kernel=True, runtime=KERNEL)
def a_place_before_the_window():
    """max_pool2d_with_indices_backward takes the index -(2**45), and ends the process.

    It writes as far before its result.
    """
    g, x = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 4, 4)
    i = torch.full((1, 1, 2, 2), -(2**45))
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten.max_pool2d_with_indices_backward(g, x, [2], [2], [0], [1], False, i)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.10", kernel=True, runtime=KERNEL)
def a_sequence_of_another_batch():
    """lstm of a packed sequence takes a hidden state of two layers and a cell state of one.

    It ends the process. Without packing, states of another shape are refused.
    """
    x, sizes = torch.ones(9, 3), torch.tensor([2, 2, 2, 2, 1])
    h = torch.ones(2, 2, 4)
    w = [torch.ones(16, 3), torch.ones(16, 4), torch.ones(16), torch.ones(16)]
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.lstm(x, sizes, [h, torch.ones(1, 2, 4)], w, True, 1, 0.0, False, False)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.11", kernel=True, runtime=KERNEL)
def a_dimension_behind_the_last():
    """_remove_batch_dim takes the dimension 2**31 for a batch, and ends the process.

    The process gets the signal of a wrong address.
    """
    x = torch.ones(2, 3)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch._remove_batch_dim(x, 1, 2, 2**31)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.12", kernel=True, runtime=KERNEL)
def an_output_of_no_size():
    """fractional_max_pool2d_backward takes an empty list for the sizes of the output.

    It reads the sizes that lie behind the list, which ends the process.
    """
    g, x, i = torch.ones(1, 2, 2), torch.ones(1, 6, 6), torch.zeros(1, 2, 2, dtype=torch.int64)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten.fractional_max_pool2d_backward(g, x, [2, 2], [], i)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.13", "pytorch#177829", kernel=True, runtime=KERNEL)
def pivots_that_are_missing():
    """lu_unpack takes pivots of no row for three, and ends the process.

    The process gets the signal of a wrong address.
    """
    pivots = torch.ones(0, dtype=torch.int32)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.lu_unpack(torch.eye(3), pivots)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F330.14", "pytorch#163450", kernel=True, runtime=KERNEL)
def a_pivot_below_zero():
    """ldl_solve ends the process where a pivot is -1.

    LAPACK gets it as an index.
    """
    x, pivots = torch.eye(3), torch.full((3,), -1, dtype=torch.int32)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.linalg.ldl_solve(x, pivots, torch.ones(3, 2))
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F331.1", "pytorch#73179", kernel=True, runtime=KERNEL)
def a_convolution_by_zero():
    """_nnpack_spatial_convolution divides by a stride of 0, and ends the process.

    conv2d refuses such a stride.
    """
    x, w = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten._nnpack_spatial_convolution(x, w, None, [0, 0], [0, 0])
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F331.2", kernel=True, runtime=KERNEL)
def a_reordered_filter_by_zero():
    """mkldnn_reorder_conv2d_weight divides by a stride of 0, and ends the process.

    conv2d refuses such a stride.
    """
    w, out = torch.ones(2, 2, 3, 3).to_mkldnn(), torch.ones(2, 2, 3, 3).to_mkldnn()
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten.mkldnn_reorder_conv2d_weight.out(w, [0, 0], [0, 0], [1, 1], 1, out=out)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F331.3", kernel=True, runtime=KERNEL)
def a_size_of_zero():
    """_sparse_broadcast_to divides by a size of 0, which ends the process.

    A dense tensor has the result without elements.
    """
    x = torch.ones(1, 3).to_sparse()
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch._sparse_broadcast_to(x, [0, 3])
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F331.4", kernel=True, runtime=KERNEL)
def heads_that_do_not_divide():
    """Attention of one head to keys of two divides by 0, which ends the process.

    It divides the number of heads by that of the keys first. It is the kernel by its own name.
    """
    q, k = torch.ones(2, 1, 3, 4), torch.ones(2, 2, 3, 4)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F331.5", "pytorch#186347", kernel=True, runtime=KERNEL)
def zero_points_that_are_no_whole_numbers():
    """quantize_per_channel to 32 bits divides by 0 where zero points are float32.

    It counts the numbers in a byte, and ends the process.
    """
    x, scales = torch.ones(1, 2, 3), torch.ones(2)
    process = os.fork()
    if not process:
        with contextlib.suppress(RuntimeError, IndexError):
            torch.quantize_per_channel(x, scales, torch.zeros(2), 1, torch.qint32)
        os._exit(0)
    return os.waitpid(process, 0)[1], 0


@report("F332.1", kernel=True, runtime=KERNEL)
def a_state_that_is_too_small():
    """_fused_sgd_ takes a momentum of four numbers for a parameter of eight.

    It writes four more behind them.
    """
    memory, x, grad = torch.zeros(10), torch.ones(8), torch.ones(8)
    numbers = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0}
    flags = {"nesterov": False, "maximize": False, "is_first_step": False}
    with contextlib.suppress(RuntimeError):
        torch._fused_sgd_([x], [grad], [memory[:4]], **numbers, **flags)
    return memory[4:].tolist(), [0.0] * 6


@report("F332.2", kernel=True, runtime=KERNEL)
def a_buffer_of_narrower_numbers():
    """_logcumsumexp writes numbers of double precision to a buffer of single precision.

    Half of them lie behind the buffer.
    """
    memory = torch.zeros(10)
    with contextlib.suppress(RuntimeError):
        torch.ops.aten._logcumsumexp.out(torch.ones(4, dtype=torch.float64), 0, out=memory[:4])
    return memory[4:].tolist(), [0.0] * 6


@report("F332.3", kernel=True, runtime=KERNEL)
def a_gradient_of_one_distance():
    """_cdist_backward takes a gradient of one distance for nine, and reads eight behind it.

    The memory goes on with sevens.
    """
    memory, x, y = torch.full((10,), 7.0), torch.ones(3, 2), torch.zeros(3, 2)
    try:
        answer = torch.ops.aten._cdist_backward(
            memory[:1].view(1, 1), x, y, 2.0, torch.ones(3, 3)
        ).tolist()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F332.4", kernel=True, runtime=KERNEL)
def a_gradient_of_one_row():
    """native_layer_norm_backward takes a gradient of one row for two, and reads the other behind.

    The memory goes on with sevens.
    """
    memory, x = torch.full((10,), 7.0), torch.arange(4.0).view(2, 2)
    mean, scale, mask = torch.zeros(2, 1), torch.ones(2, 1), [True, False, False]
    try:
        answer = torch.ops.aten.native_layer_norm_backward(
            memory[:2].view(1, 2), x, [2], mean, scale, None, None, mask
        )[0].tolist()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F332.5", kernel=True, runtime=KERNEL)
def a_gradient_of_one_image():
    """replication_pad2d_backward takes a gradient of one image for two, and reads the other behind.

    The memory goes on with sevens.
    """
    memory = torch.full((40,), 7.0)
    try:
        answer = torch.ops.aten.replication_pad2d_backward(
            memory[:9].view(1, 3, 3), torch.ones(2, 1, 1), [1, 1, 1, 1]
        ).tolist()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F333.1", kernel=True, runtime=KERNEL, raises="INTERNAL ASSERT FAILED")
def buffers_for_no_results():
    """_foreach_abs with an empty list of buffers meets an assertion of torch's own.

    So do all foreach ops with buffers, and split_copy.
    """
    torch.ops.aten._foreach_abs.out([torch.ones(2)], out=[])
    return "a result", "an error that says what is wrong"


@report("F333.2", kernel=True, runtime=KERNEL, raises="at::kBool INTERNAL ASSERT FAILED")
def numbers_that_are_no_truths():
    """_is_any_true of numbers meets an assertion of torch's own.

    torch.any takes them.
    """
    return torch._is_any_true(torch.ones(2, dtype=torch.uint8)), torch.tensor(True)


@report("F334.1", kernel=True, runtime=KERNEL)
def statistics_that_change_in_silence():
    """batch_norm_update_stats changes the running mean, and its schema has no word of that.

    What compiles a program by schemas may lose the write, or make it too early.
    """
    schema = torch.ops.aten.batch_norm_update_stats.default._schema
    mean, before = torch.zeros(3), torch.zeros(3)
    torch.ops.aten.batch_norm_update_stats(torch.ones(2, 3), mean, torch.ones(3), 0.5)
    return schema.is_mutable, not torch.equal(mean, before)
