"""Copies, schedules of learning rates, and tools around modules."""

import copy
import pickle

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from tests.reports.report import report


@report("F190.1", kernel=True, raises="has no attribute '_untyped_storage'")
def copy_of_a_tensor_of_a_new_dtype():
    """copy.copy of a tensor of uint16, uint32, uint64, float8 or complex32 raises.

    copy.deepcopy and torch.save take it.
    """
    x = torch.ones(2).to(torch.uint16)
    return copy.copy(x).sum(), copy.deepcopy(x).sum()


@report("F190.2", kernel=True, raises="has no attribute 'dtype'")
def pickled_tensor_of_a_new_dtype():
    """pickle of a tensor of uint16, uint32, uint64, float8 or complex32 raises.

    copy.deepcopy and torch.save take it.
    """
    x = torch.ones(2).to(torch.float8_e4m3fn)
    return pickle.loads(pickle.dumps(x)).float(), torch.ones(2)


@report("F191.1", kernel=True)
def pickled_sparse_leaf():
    """A sparse tensor that requires grad requires none after pickle, torch.save or copy.copy.

    A dense one does, and so does a sparse one after copy.deepcopy.
    """
    x = torch.eye(2).to_sparse().requires_grad_()
    return pickle.loads(pickle.dumps(x)).requires_grad, x.requires_grad


@report("F191.2", kernel=True, raises="Cannot access storage of SparseCsrTensorImpl")
def deep_copy_of_a_csr_matrix():
    """copy.deepcopy of a tensor of the layouts CSR, CSC, BSR or BSC raises.

    copy.copy, pickle and torch.save take it.
    """
    x = torch.eye(2).to_sparse_csr()
    return copy.deepcopy(x).to_dense(), copy.copy(x).to_dense()


@report("F192.1", kernel=True)
def attribute_of_a_copied_parameter():
    """copy.deepcopy of a parameter leaves its attributes out.

    Of a tensor it copies them, and pickle and torch.save keep those of parameters.
    """
    weight = nn.Parameter(torch.ones(2))
    weight.rate = 0.5
    return hasattr(copy.deepcopy(weight), "rate"), hasattr(
        pickle.loads(pickle.dumps(weight)), "rate"
    )


@report("F192.2", kernel=True)
def gradient_of_a_copied_parameter():
    """copy.deepcopy of a parameter leaves its gradient out.

    Of a tensor that requires grad it copies the gradient.
    """
    leaf = torch.ones(2, requires_grad=True)
    weight = nn.Parameter(torch.ones(2))
    leaf.grad, weight.grad = torch.ones(2), torch.ones(2)
    return copy.deepcopy(weight).grad is None, copy.deepcopy(leaf).grad is None


@report("F193.1", kernel=True, raises="'LBFGS' object has no attribute '_params'")
def step_of_a_copied_lbfgs():
    """A copy of an LBFGS optimizer by copy.deepcopy, pickle or torch.save cannot take a step.

    Copies of all other optimizers can.
    """
    weight = torch.ones(2, requires_grad=True)
    optimizer = copy.deepcopy(torch.optim.LBFGS([weight]))
    (mine,) = optimizer.param_groups[0]["params"]
    return optimizer.step(lambda: (mine * mine).sum()), torch.tensor(2.0)


@report("F194.1", kernel=True)
def resumed_step_rate():
    """StepLR that resumes at a multiple of step_size halves the rate once more.

    The rate of the optimizer is that of epoch 2 already, as for ExponentialLR.
    """
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    schedule = lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(2):
        optimizer.step()
        schedule.step()
    lr_scheduler.StepLR(optimizer, 2, 0.5, last_epoch=1)
    return optimizer.param_groups[0]["lr"], 0.5


@report("F194.2", kernel=True)
def resumed_milestone_rate():
    """MultiStepLR that resumes at a milestone halves the rate once more.

    The rate of the optimizer is that of epoch 2 already, as for ExponentialLR.
    """
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    schedule = lr_scheduler.MultiStepLR(optimizer, [2], 0.5)
    for _ in range(2):
        optimizer.step()
        schedule.step()
    lr_scheduler.MultiStepLR(optimizer, [2], 0.5, last_epoch=1)
    return optimizer.param_groups[0]["lr"], 0.5


@report("F194.3", kernel=True)
def resumed_averaging_rate():
    """SWALR that resumes begins to anneal anew.

    After two of four epochs on a line from 1 to 0 the rate is 0.5, and after one more 0.25. SWALR
    counts its own steps, and not from last_epoch.
    """
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    schedule = swa_utils.SWALR(optimizer, 0.0, 4, "linear")
    for _ in range(2):
        optimizer.step()
        schedule.step()
    resumed = swa_utils.SWALR(optimizer, 0.0, 4, "linear", last_epoch=1)
    optimizer.step()
    resumed.step()
    return optimizer.param_groups[0]["lr"], 0.25


@report("F207.1", "pytorch#196243", kernel=True)
def sequence_of_one_sequence():
    """A SequentialLR that has another one inside takes its first step twice.

    A sequence of one schedule is that schedule.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    halves = [
        lr_scheduler.ConstantLR(optimizer, 0.5, 9),
        lr_scheduler.ExponentialLR(optimizer, 0.9),
    ]
    outer = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.SequentialLR(optimizer, halves, [2])], []
    )
    optimizer.step()
    outer.step()
    return optimizer.param_groups[0]["lr"], 0.5


@report("F195.1", kernel=True)
def local_response_across_channels():
    """CrossMapLRN2d adds the first channel to the sums of all channels.

    The sum for the third channel of four is of channels 2, 3 and 4. LocalResponseNorm has it right.
    """
    x = torch.tensor([9.0, 1.0, 1.0, 1.0]).reshape(1, 4, 1, 1)
    return nn.CrossMapLRN2d(3, 0.5, 1.0, 2.0)(x), nn.LocalResponseNorm(3, 0.5, 1.0, 2.0)(x)


@report("F196.1", kernel=True, raises="Integer division with addcdiv")
def average_of_a_batch_norm_with_its_buffers():
    """The averages of get_swa_multi_avg_fn raise for a module with a buffer of integers.

    BatchNorm counts batches in one. With use_buffers=True buffers are averaged, too.
    """
    norm = nn.BatchNorm1d(1)
    average = swa_utils.get_swa_multi_avg_fn()
    averages = swa_utils.AveragedModel(norm, multi_avg_fn=average, use_buffers=True)
    for _ in range(2):
        averages.update_parameters(norm)
    return averages.module.weight.detach(), torch.ones(1)


@report("F196.2", kernel=True, raises="view size is not compatible")
def vector_of_a_transposed_parameter():
    """parameters_to_vector raises for a parameter whose memory is transposed.

    The elements of a parameter have an order in any layout.
    """
    weight = torch.arange(4.0).reshape(2, 2).t()
    return nn.utils.parameters_to_vector([weight]), torch.tensor([0.0, 2.0, 1.0, 3.0])


@report("F200.1", "pytorch#196083", kernel=True)
def optimizers_with_one_state():
    """An optimizer that has loaded the state of another one changes it at its next step.

    load_state_dict says that it copies the state. The momentum of the first optimizer was 1.
    """
    optimizers = []
    for gradient in (1.0, 5.0):
        weight = nn.Parameter(torch.ones(1))
        optimizers.append(torch.optim.SGD([weight], lr=0.1, momentum=0.5))
        weight.grad = torch.full((1,), gradient)
        optimizers[-1].step()
    first, second = optimizers
    second.load_state_dict(first.state_dict())
    second.step()
    return first.state_dict()["state"][0]["momentum_buffer"], torch.ones(1)


@report("F200.2", "pytorch#188346", kernel=True)
def assigned_states_of_tied_parameters():
    """A parameter with two names is two parameters after load_state_dict with assign=True.

    Without assign it stays one. An optimizer updates one of the two alone.
    """
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    module.load_state_dict(module.state_dict(), assign=True)
    return module[0].weight is module[1].weight, True
