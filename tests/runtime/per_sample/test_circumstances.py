"""Dtypes, sizes of batches, several backward passes, threads and errors: what
surrounds a context."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime import jit
from runtime.per_sample import per_sample


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)).to(dtype)


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(6, 5, dtype=dtype), torch.tensor([0, 1, 2, 0, 1, 2])


def loss_of(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(x), y)


def by_loop(
    m: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor] = loss_of
) -> list[Tensor]:
    params = list(m.parameters())
    found = [
        torch.autograd.grad(loss(m, x[b : b + 1], y[b : b + 1]), params) for b in range(len(x))
    ]
    return [torch.stack(gs) for gs in zip(*found, strict=True)]


def compare(found: Any, expected: list[Tensor], tolerance: float = 1e-10) -> None:
    for a, e in zip(found, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)


class TestDtypes:
    @pytest.mark.parametrize(
        ("dtype", "tolerance"),
        [(torch.bfloat16, 0.02), (torch.float16, 3e-3), (torch.float32, 1e-6)],
    )
    def test_gradients_have_the_dtype_of_the_parameter_and_norms_are_wide(
        self, dtype: torch.dtype, tolerance: float
    ) -> None:
        m, (x, y) = network(dtype), batch(dtype)
        with per_sample(m.parameters()) as grads:
            loss_of(m, x, y).backward()
        expected = by_loop(m, x, y)
        compare(grads.materialize(), expected, tolerance)
        norms = torch.cat([g.float().flatten(1) for g in expected], 1).norm(dim=1)
        torch.testing.assert_close(grads.norms(), norms, rtol=tolerance, atol=tolerance)
        assert {g.dtype for g in grads.clipped_sum(0.1)} == {dtype}

    def test_under_autocast_gradients_have_the_dtype_of_the_parameter(self) -> None:
        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss_of(m, x, y)

        m, (x, y) = network(torch.float32), batch(torch.float32)
        with per_sample(m.parameters()) as grads:
            loss(m, x, y).backward()
        compare(grads.materialize(), by_loop(m, x, y, loss), 0.02)

    def test_complex_parameters_have_conjugate_gradients_as_in_torch(self) -> None:
        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            out = x @ next(m.parameters())
            return out.abs().pow(2).sum() + (out * (1 + 2j)).real.sum()

        m, (x, y) = nn.Module(), batch(torch.complex128)
        m.w = nn.Parameter(torch.randn(5, 3, dtype=torch.complex128))
        with per_sample(m.parameters()) as grads:
            loss(m, grads.batch(x), y).backward()
        expected = by_loop(m, x, y, loss)
        compare(grads.materialize(), expected)
        torch.testing.assert_close(grads.norms(), expected[0].flatten(1).norm(dim=1))

    def test_dropout_draws_the_masks_of_the_batched_pass(self) -> None:
        x, y = batch()
        m = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
        torch.manual_seed(3)
        with per_sample(m.parameters()) as grads:
            loss_of(m, x, y).backward()
        torch.manual_seed(3)
        compare(
            [g.mean(0) for g in grads.materialize()],
            list(torch.autograd.grad(loss_of(m, x, y), list(m.parameters()))),
        )


class TestBatches:
    @pytest.mark.parametrize("size", [6, 4, 1])
    def test_a_last_batch_may_be_smaller(self, size: int) -> None:
        m, (x, y) = network(), batch()
        with per_sample(m.parameters()) as grads:
            loss_of(m, x[:size], y[:size]).backward()
        compare(grads.materialize(), by_loop(m, x[:size], y[:size]))

    @pytest.mark.parametrize(
        ("make", "shape"),
        [
            (network, (0, 5)),
            (
                lambda: nn.Sequential(
                    nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(12, 2)
                ),
                (0, 2, 4, 4),
            ),
            (lambda: nn.TransformerEncoderLayer(4, 2, 5, 0.0, batch_first=True), (0, 3, 4)),
        ],
        ids=["MLP", "CNN", "transformer"],
    )
    def test_an_empty_batch_has_no_gradients_and_sums_of_zero(
        self, make: Callable[[], nn.Module], shape: tuple[int, ...]
    ) -> None:
        m, x = make().double(), torch.zeros(shape, dtype=torch.float64)
        with per_sample(m.parameters()) as grads:
            m(x).pow(2).sum().backward()
        assert len(grads) == 0 and grads.norms().shape == (0,) and grads.project(3).shape == (0, 3)
        for p, g, total in zip(
            m.parameters(), grads.materialize(), grads.clipped_sum(1.0), strict=True
        ):
            assert g.shape == (0, *p.shape) and total.equal(torch.zeros_like(p))

    def test_the_mean_of_a_sample_whose_targets_are_all_ignored_has_no_gradient(self) -> None:
        m, (x, y) = network(), batch()
        y = y.clone()
        y[2] = -100
        with per_sample(m.parameters()) as grads:
            loss_of(m, x, y).backward()
        compare(grads.materialize(), by_loop(m, x, y))

    def test_two_means_over_the_same_targets_add_up(self) -> None:
        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return (loss_of(m, x, y) + loss_of(m, 2 * x, y)) / 2

        m, (x, y) = network(), batch()
        y = y.clone()
        y[2] = -100
        with per_sample(m.parameters()) as grads:
            loss(m, grads.batch(x), grads.batch(y)).backward()
        compare(grads.materialize(), by_loop(m, x, y, loss))


class TestTheLossOfASample:
    @pytest.mark.parametrize(
        "loss",
        [
            lambda out, y: F.cross_entropy(out, out.detach().softmax(1)),
            lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
            lambda out, y: F.kl_div(
                out.log_softmax(1), out.detach().softmax(1), reduction="batchmean"
            ),
        ],
        ids=["soft targets", "label smoothing", "batchmean"],
    )
    def test_means_that_torch_computes_as_sums_divided_by_the_size_are_means(
        self, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        m, (x, y) = network(), batch()
        with per_sample(m.parameters()) as grads:
            loss(m(x), y).backward()
        compare(grads.materialize(), by_loop(m, x, y, lambda m, x, y: loss(m(x), y)))

    @pytest.mark.parametrize(
        "scaled",
        [lambda per: per.sum() / 6, lambda per: per.sum() * (1 / 6), lambda per: per.mean() * 6],
    )
    def test_a_number_that_may_be_the_size_of_the_batch_needs_a_word(
        self, scaled: Callable[[Tensor], Tensor]
    ) -> None:
        m, (x, y) = network(), batch()
        with (
            per_sample(m.parameters()),
            pytest.raises(RuntimeError, match="reduction='sum' or 'mean'"),
        ):
            scaled(m(x).pow(2).sum(1)).backward()
        with per_sample(m.parameters(), reduction="mean") as grads:
            (m(x).pow(2).sum(1).sum() / 6).backward()
        compare(grads.materialize(), by_loop(m, x, y, lambda m, x, y: m(x).pow(2).sum()))


class TestBackwardPasses:
    @pytest.mark.parametrize("retain", [True, False])
    def test_they_add_up(self, retain: bool) -> None:
        m, (x, y) = network(), batch()
        with per_sample(m.parameters()) as grads:
            loss = loss_of(m, x, y)
            loss.backward(retain_graph=retain)
            (loss if retain else loss_of(m, x, y)).backward()
        compare(grads.materialize(), [2 * g for g in by_loop(m, x, y)])

    def test_a_backward_pass_after_the_block_counts(self) -> None:
        m, (x, y) = network(), batch()
        with per_sample(m.parameters()) as grads:
            loss = loss_of(m, x, y)
        loss.backward()
        compare(grads.materialize(), by_loop(m, x, y))

    def test_other_tensors_have_their_ordinary_grad(self) -> None:
        m, (x, y), head = network(), batch(), nn.Linear(3, 3).double()
        x.requires_grad_()
        with per_sample(m.parameters()) as grads:
            loss_of(nn.Sequential(m, head), x, y).backward()
        found, x.grad, of_weight, head.weight.grad = x.grad, None, head.weight.grad, None
        loss_of(nn.Sequential(m, head), x, y).backward()
        torch.testing.assert_close((found, of_weight), (x.grad, head.weight.grad))
        assert type(found) is type(of_weight) is Tensor
        compare(
            grads.materialize(),
            by_loop(nn.Sequential(m, head), x.detach(), y)[: len(list(m.parameters()))],
        )


class TestTheBlock:
    def test_nothing_is_left_of_it(self) -> None:
        m, (x, y), call = network(), batch(), nn.Module.__call__
        with per_sample(m.parameters()):
            loss_of(m, x, y).backward()
        loss = loss_of(m, x, y)
        loss.backward()
        assert type(loss) is Tensor and nn.Module.__call__ is call
        assert all(type(p.grad) is Tensor and not vars(p) for p in m.parameters())

    def test_nothing_is_left_of_it_after_an_error(self) -> None:
        m, (x, y), call = network(), batch(), nn.Module.__call__
        with pytest.raises(KeyError), per_sample(m.parameters()):
            m(x)
            raise KeyError
        assert type(loss_of(m, x, y)) is Tensor and nn.Module.__call__ is call

    def test_a_plain_buffer_that_got_samples_is_plain_again(self) -> None:
        m, (x, y) = network(), batch()
        kept = torch.zeros(5, dtype=torch.float64)
        with per_sample(m.parameters()) as grads:
            with torch.no_grad():
                kept.mul_(0.9).add_(grads.batch(x).mean(0))
            loss_of(m, x, y).backward()
        assert type(kept) is Tensor
        torch.testing.assert_close(kept, x.mean(0))
        compare(grads.materialize(), by_loop(m, x, y))

    @pytest.mark.parametrize("held", [True, False])
    def test_a_plain_buffer_of_which_a_row_got_samples_is_plain_again(self, held: bool) -> None:
        m, x = network(), batch()[0]
        kept = torch.zeros(2, 5, dtype=torch.float64)
        row = kept[1] if held else None
        with per_sample(m.parameters()) as grads, torch.no_grad():
            (kept[1] if row is None else row).add_(grads.batch(x).mean(0))
        assert type(kept) is Tensor and type(kept[1] if row is None else row) is Tensor
        torch.testing.assert_close(kept, torch.stack([torch.zeros_like(kept[0]), x.mean(0)]))

    def test_a_plain_tensor_that_got_a_history_keeps_it(self) -> None:
        m, (x, y) = network(), batch()
        kept = torch.zeros(6, 2, 3, dtype=torch.float64)
        with per_sample(m.parameters(), reduction="sum") as grads:
            kept[:, 1] = m(x)
        kept.pow(2).sum().backward()
        compare(grads.materialize(), by_loop(m, x, y, lambda m, x, y: m(x).pow(2).sum()))

    def test_one_within_another_is_refused_and_the_outer_one_goes_on(self) -> None:
        m, (x, y) = network(), batch()
        with per_sample(m.parameters()) as grads:
            with (
                pytest.raises(RuntimeError, match="another per_sample"),
                per_sample(m.parameters()),
            ):
                pass
            loss_of(m, x, y).backward()
        compare(grads.materialize(), by_loop(m, x, y))

    def test_threads_have_blocks_of_their_own(self) -> None:
        found: dict[int, Any] = {}

        def followed(i: int) -> None:
            m, x, y = network(), batch()[0] * (i + 1), batch()[1]
            for _ in range(3):
                with per_sample(m.parameters()) as grads:
                    loss_of(m, x, y).backward()
            found[i] = grads.materialize(), by_loop(m, x, y)

        def plain(i: int) -> None:
            m = network()
            for _ in range(10):
                loss_of(m, *batch()).backward()
            found[i] = type(next(m.parameters()).grad)

        threads = [
            threading.Thread(target=followed if i < 2 else plain, args=(i,)) for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(2):
            compare(*found[i])
        assert found[2] is found[3] is Tensor

    def test_a_thread_whose_block_is_over_calls_modules_as_torch_does(self) -> None:
        m, (x, y), entered, over = network(), batch(), threading.Event(), threading.Event()

        def other() -> None:
            with per_sample(network().parameters()):
                entered.set()
                over.wait(60)

        with per_sample(m.parameters()) as grads:
            loss_of(m, x, y).backward()
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(60)
        out = m(x)
        over.set()
        thread.join()
        assert type(out) is Tensor and len(grads) == 6

    def test_a_parameter_that_is_written_before_the_backward_pass_is_noticed(self) -> None:
        m, (x, y) = nn.Linear(5, 3).double(), batch()
        with per_sample(m.parameters()):
            loss = loss_of(m, x * next(m.parameters()).sum(), y)
            with torch.no_grad():
                next(m.parameters()).add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()

    def test_without_a_backward_pass_there_are_no_gradients(self) -> None:
        m, (x, _) = network(), batch()
        with per_sample(m.parameters()) as grads:
            m(x)
        with pytest.raises(RuntimeError, match="no backward pass"):
            grads.norms()


def test_a_captured_program_refuses_the_context_by_line_and_names_the_function() -> None:
    m, (x, y) = network(), batch()

    @jit
    def clipped(x: Tensor, y: Tensor) -> Any:
        with per_sample(m.parameters()) as grads:
            loss_of(m, x, y).backward()
        return grads.clipped_sum(1.0)

    with pytest.raises(RuntimeError, match=r"(?s)Use per_sample_grads there.*test_circumstances"):
        clipped(x, y)


def _statistics(x: Tensor, which: str) -> Tensor:
    """What a call for a batch of (B, 4, 2) leaves in a plain tensor beside its results."""
    mean, var = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
    if which == "batch_norm":
        F.batch_norm(x, mean, var, training=True)
    elif which == "_native_batch_norm_legit":
        torch.ops.aten._native_batch_norm_legit(x, None, None, mean, var, True, 0.1, 1e-5)
    else:
        torch.ops.aten._batch_norm_with_update(x, None, None, mean, var, 0.1, 1e-5)
    return mean


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize(
    "which", ["batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"]
)
def test_running_statistics_that_the_same_pass_reads_are_refused(which: str, rows: int) -> None:
    w, x = (
        torch.randn(4, 4, dtype=torch.float64, requires_grad=True),
        torch.randn(rows, 4, dtype=torch.float64),
    )
    with per_sample([w]) as grads:
        x = grads.batch(x)
        mean = _statistics(torch.stack([x, 2 * x], -1), which)
        loss = ((x @ w) * mean).sum()
        with pytest.raises(
            RuntimeError,
            match=(
                r"norm.* mixes samples in the program: "
                r"batch norm computes its statistics over the batch"
            ),
        ):
            loss.backward()


def test_running_statistics_in_memory_that_others_share_are_refused() -> None:
    w, x, both = torch.ones(4, requires_grad=True), torch.randn(3, 4), torch.zeros(2, 4)
    with (
        per_sample([w]) as grads,
        pytest.raises(
            RuntimeError, match=r"its argument running_mean .* Other tensors share its memory"
        ),
    ):
        F.batch_norm(grads.batch(x), both[0], both[1], training=True)


def test_running_statistics_in_a_row_of_a_buffer_are_refused_where_the_pass_reads_it() -> None:
    w, x, means = torch.ones(4, requires_grad=True), torch.randn(3, 4), torch.zeros(2, 4)
    with per_sample([w]) as grads:
        x = grads.batch(x)
        F.batch_norm(x, means[0], torch.ones(4), training=True)
        loss = (x * w * means.sum(0)).sum()
        with pytest.raises(
            RuntimeError,
            match=(
                r"batch_norm.* mixes samples in the program: "
                r"batch norm computes its statistics over"
            ),
        ):
            loss.backward()
    assert type(means) is Tensor and means[0].abs().min() > 0 and means[1].count_nonzero() == 0


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_noise_that_a_call_draws_for_each_sample_is_a_batch(rows: int) -> None:
    w, x, noise = torch.ones(4, requires_grad=True), torch.randn(rows, 4), torch.zeros(rows, 4)
    with per_sample([w]) as grads:
        x_ = grads.batch(x)
        torch.ops.aten.rrelu_with_noise(x_, noise, 0.1, 0.3, True)
        (x_ * w * noise).sum().backward()
    assert type(noise) is Tensor and noise.abs().min() > 0
    torch.testing.assert_close(grads.materialize()[0], x * noise)


def test_running_statistics_are_updated_once_and_are_plain_afterwards() -> None:
    norm, x = torch.nn.BatchNorm1d(4), torch.randn(3, 4)
    alone = copy.deepcopy(norm)
    alone(x)
    with per_sample(norm.parameters()):
        norm(x)
    assert type(norm.running_mean) is torch.Tensor
    torch.testing.assert_close(norm.running_mean, alone.running_mean)
    torch.testing.assert_close(norm.running_var, alone.running_var)


def test_statistics_of_evaluation_are_constants() -> None:
    norm, x = torch.nn.BatchNorm1d(4).double().eval(), torch.randn(3, 4, dtype=torch.float64)
    with per_sample(norm.parameters()) as grads:
        (norm(x) * norm.running_var).sum().backward()
    torch.testing.assert_close(grads.materialize()[1], torch.ones(3, 4, dtype=torch.float64))


def test_running_statistics_of_instance_norm_that_the_same_pass_reads_are_refused() -> None:
    w, x, norm = (
        torch.ones(4, requires_grad=True),
        torch.randn(3, 4, 2),
        nn.InstanceNorm1d(4, track_running_stats=True),
    )
    with per_sample([w]) as grads:
        x = grads.batch(x)
        norm(x)
        assert norm.running_mean is not None
        loss = (x.sum(2) * w * norm.running_mean).sum()
        with pytest.raises(
            RuntimeError, match="a sum or mean over the samples and with single samples"
        ):
            loss.backward()


def test_instance_norm_has_the_gradients_of_a_loop_and_updates_its_statistics_as_alone() -> None:
    norm, x = (
        nn.InstanceNorm1d(4, affine=True, track_running_stats=True).double(),
        torch.randn(3, 4, 2, dtype=torch.float64),
    )
    alone, expected = copy.deepcopy(norm), []
    for one in x:
        each = copy.deepcopy(norm)
        expected.append(torch.autograd.grad(each(one[None]).pow(3).sum(), list(each.parameters())))
    alone(x)
    with per_sample(norm.parameters()) as grads:
        norm(x).pow(3).sum().backward()
    for found, wanted in zip(grads.materialize(), zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(wanted))
    torch.testing.assert_close(norm.state_dict(), alone.state_dict())


def test_running_statistics_of_one_sample_may_be_read_in_the_same_pass() -> None:
    def loss(x: Tensor) -> Tensor:
        mean, var = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
        out: Tensor = F.batch_norm(torch.stack([x * w, x], -1), mean, var, training=True)
        return out[..., 0].pow(3).sum() + (x * w * mean.detach() * var.detach()).sum()

    w, x = (
        torch.linspace(0.5, 2, 4, dtype=torch.float64).requires_grad_(),
        torch.arange(1.0, 5, dtype=torch.float64)[None],
    )
    (expected,) = torch.autograd.grad(loss(x), w)
    with per_sample([w]) as grads:
        loss(grads.batch(x)).backward()
    torch.testing.assert_close(grads.materialize()[0], expected[None])
