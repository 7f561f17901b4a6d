"""Give each op its rule of places, from the families of ``place_rules`` and from rules of its own.

An op without a rule, and without
parts that have one, mixes the samples as far as anyone knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ops import Op
from ..record import of_this_torch, overload
from .place_indices import INDICES
from .place_joins import (
    place_cat,
    place_isin,
    place_overlapped,
    place_renorm,
    place_repeat,
    place_scattered,
    place_sort,
    place_stack,
)
from .place_layers import (
    batch_norm,
    convolution,
    embedding_bag,
    fractional_pool,
    log_probs,
    loss,
    margin_loss,
    nll_loss,
    normalization,
    padding,
    per_channel,
    recurrent,
)
from .place_rules import (
    Rule,
    aligned,
    along,
    front,
    leading,
    place_by_leading,
    place_if_met,
    product,
    reduced,
    trailing,
)
from .place_views import VIEWS
from .places import Mixed, Place, Placed, Pooled, one_place

_rules: dict[object, Rule] = {}  # by op: where the samples of its results are


def rule_of(op: Op) -> Rule | None:
    """Return the rule of an op, or None. The rule of a write is that of its functional form."""
    record = op.record
    if record is not None and record.places is not None:
        return record.places
    rule = _rules.get(op.func)
    if rule is not None:
        return rule
    if op.functional is not None:
        return rule_of(op.functional)
    # torch knows more pointwise ops than there are records
    if torch.Tag.pointwise in op.func.tags or (record is not None and record.elementwise):
        return aligned
    return None


def _give(names: str, rule: Rule) -> None:
    """Register ``rule`` for the ops ``names``, without those that this torch does not have."""
    for name in of_this_torch(names):
        _rules[overload(name)] = rule


def _distances(call: Placed) -> Place:
    """Return the place in distances of the rows of two matrices: the rows of one of them may be
    samples, and so may stacks of both."""
    # entry (i, j) is of row i of x1 and row j of x2
    for name, other, dim in (("x1", "x2", -2), ("x2", "x1", -1)):
        place, tensor = call.place(name), call.args[name]
        if place is not None and place.dim == tensor.dim() - 2 and call.place(other) is None:
            return place.moved(call.outs[0].dim() + dim)
    return place_by_leading(call, {"x1": 2, "x2": 2})


def _dot(call: Placed) -> Pooled:
    """Return that the sum of products is one over the samples. ``Mixed`` if they do not line up."""
    place_by_leading(call, {})
    return Pooled()


def _trilinear(call: Placed) -> Place:
    """Return the place in the product of three tensors, each with more dimensions of size 1, summed
    over some dimensions."""
    rank = call.args["i1"].dim() + len(call.args["expand1"])
    # by argument: the dimensions of the product that it has
    own_dims = {f"i{n}": _other_dims(call.args[f"expand{n}"], rank) for n in (1, 2, 3)}
    places = []
    for name, dims in own_dims.items():
        own = call.place(name)
        if own is not None:
            places.append(own.moved(dims[own.dim]))
    place = one_place(places)
    summed = [dim % rank for dim in call.args["sumdim"]]
    if place.dim in summed:
        raise Mixed("it sums over the samples")
    # a constant that has this dimension has a part for each sample
    for name, dims in own_dims.items():
        if call.place(name) is None and place.dim in dims:
            place_if_met(call, name, place.moved(dims.index(place.dim)))
    return place.moved(place.dim - sum(dim < place.dim for dim in summed))


def _other_dims(dims: Sequence[int], rank: int) -> list[int]:
    """List the dimensions of a tensor of ``rank`` that are not in ``dims``."""
    named = {dim % rank for dim in dims}
    return [dim for dim in range(rank) if dim not in named]


def _search(call: Placed) -> Place:
    """Return the place in the positions of numbers among sorted ones: one row of these for all, or
    one for each row of numbers."""
    rows = int(call.args["sorted_sequence"].dim() > 1)
    return place_by_leading(call, {"sorted_sequence": 1, "sorter": 1, "self": rows})


def _least_squares(call: Placed) -> list[Place | None]:
    """Return the places in a solution of least squares, its residuals, and the rank and singular
    values of the matrix."""
    matrix, right = call.args["self"], call.args["b"]
    # torch takes it for vectors by its shape, and for one vector by its rank
    is_of_vectors = right.dim() == 1 or right.shape == matrix.shape[:-1]
    place = place_by_leading(call, {"self": 2, "b": 2 - is_of_vectors})
    # a result that was not asked for is empty
    return [place if output.numel() else None for output in call.outs]


def _solve_rule(right: str, **cores: int) -> Rule:
    """Return the rule of ``solve(A, B)``, where B is a matrix or a vector.

    Stacks of both may be samples, and so may columns of B, or its rows if ``left`` is False.
    ``right``: the name of B. ``cores``: the dimensions of A and of its factors.
    """

    def rule(call: Placed) -> Any:
        """Return the place in the solution: a free dimension of B, or a leading one."""
        tensor, place = call.args[right], call.place(right)
        # the first of `cores` is the matrix or its main factor, with as many dimensions
        vector = tensor.dim() == call.args[next(iter(cores))].dim() - 1
        alone = all(place is None for name, place in call.places.items() if name != right)
        free = tensor.dim() - 1  # the dimension of B along which no equation runs
        if not call.args.get("left", True):
            free -= 1
        # with one matrix for all, the right-hand sides of samples may be columns
        is_matrix_of_samples = alone and not vector
        if place is not None and is_matrix_of_samples and place.dim == free:
            moved = place.moved(place.dim + call.outs[0].dim() - tensor.dim())
            return [moved, *[None] * (len(call.outs) - 1)]
        core = 2
        if vector:
            core = 1
        return place_by_leading(call, {right: core, **cores})

    return rule


def _cross(call: Placed) -> Place:
    """Return the place in cross products, which are along ``dim``."""
    place = aligned(call)
    if call.args["dim"] % call.outs[0].dim() == place.dim:
        raise Mixed(f"it computes along dimension {place.dim}, which runs over the samples")
    return place  # type: ignore[no-any-return]


def _diag_embedded(call: Placed) -> Place:
    """Return the place in matrices with these diagonals."""
    rank = call.outs[0].dim()
    dims = {call.args["dim1"] % rank, call.args["dim2"] % rank}
    if dims != {rank - 2, rank - 1}:
        raise Mixed("its dimensions are not the last ones")
    return place_by_leading(call, {"self": 1})


for _name, _args in {
    "bmm": ("self", "mat2"), "mm": ("self", "mat2"), "mv": ("self", "vec"),
    "baddbmm": ("batch1", "batch2", "self"), "addmm": ("mat1", "mat2", "self"),
    "addmv": ("mat", "vec", "self"), }.items():  # fmt: skip
    _give(_name, product(*_args))
_give(
    """sum sum.dim_IntList mean mean.dim nansum prod prod.dim_int amax amin max min aminmax median
    median.dim nanmedian nanmedian.dim logsumexp linalg_vector_norm norm.Scalar norm.ScalarOpt_dim
    norm.ScalarOpt_dtype norm.ScalarOpt_dim_dtype max.dim min.dim var.correction std.correction
    var_mean.correction std_mean.correction mode kthvalue any any.dim any.dims all all.dim all.dims
    argmax argmin count_nonzero count_nonzero.dim_IntList""",
    reduced,
)
_give(
    "_softmax _safe_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin topk glu",
    along(),
)
_give("sort sort.stable", place_sort)
_give("_trilinear", _trilinear)
_give("multi_margin_loss multilabel_margin_loss_forward", margin_loss)
_give("_fft_c2c _fft_r2c _fft_c2r", along())
_give("native_layer_norm _fused_rms_norm", normalization)
_give("native_group_norm", front("input"))
_give("convolution", convolution)
_give("dot vdot", _dot)
_give("grid_sampler_2d grid_sampler_3d", front("input", "grid"))
_give(
    (
        "native_batch_norm _native_batch_norm_legit_functional _native_batch_norm_legit "
        "_native_batch_norm_legit.no_stats"
    ),
    batch_norm,
)
_give(
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update",
    batch_norm,
)
_give("mse_loss smooth_l1_loss huber_loss soft_margin_loss", loss("target"))
_give("binary_cross_entropy", loss("target", "weight"))
_give("binary_cross_entropy_with_logits", loss("target", "weight", "pos_weight"))
_give("nll_loss_forward nll_loss2d_forward", nll_loss)
_give("_ctc_loss _ctc_loss.Tensor", log_probs)
_give("_embedding_bag _embedding_bag_forward_only", embedding_bag)
_give("mkldnn_rnn_layer", recurrent)
_give("_scaled_dot_product_flash_attention_for_cpu", trailing(2))
_give("constant_pad_nd", padding)
for _name, _own_rule in {
    "fractional_max_pool2d fractional_max_pool3d": fractional_pool,
    "conv_tbc": front("self", dim=1),
    "affine_grid_generator": front("theta"),
    "searchsorted.Tensor": _search,
    "bucketize.Tensor": leading(boundaries=1),
    "isin.Tensor_Tensor": place_isin,
    "renorm": place_renorm,
    "rot90": along("dims"),
    "linalg_pinv.atol_rtol_tensor": leading(self=2),
    "linalg_lstsq": _least_squares,
    "fake_quantize_per_channel_affine_cachemask": per_channel,
    "unfold_backward": place_overlapped,
    "_sample_dirichlet _dirichlet_grad multinomial": trailing(1),
    "select_scatter slice_scatter diagonal_scatter": place_scattered,
}.items():
    _give(_name, _own_rule)
_give("cat", place_cat)
_give("stack", place_stack)
_give("repeat", place_repeat)
_give("diag_embed", _diag_embedded)
_give("_linalg_solve_ex", _solve_rule("B", A=2))
_give("linalg_solve_triangular", _solve_rule("B", self=2))
_give("cholesky_solve", _solve_rule("self", input2=2))
_give("triangular_solve", _solve_rule("self", A=2))
_give("linalg_lu_solve", _solve_rule("B", LU=2, pivots=1))
_give("linalg_ldl_solve", _solve_rule("B", LD=2, pivots=1))
_give("ormqr", _solve_rule("input3", self=2, input2=1))
_give("lu_unpack", leading(LU_data=2, LU_pivots=1))
_give("linalg_householder_product", leading(input=2, tau=1))
_give("linalg_cross", _cross)
_give("_cdist_forward _euclidean_dist", _distances)
for _names, _core in {
    (
        "reflection_pad1d replication_pad1d upsample_nearest1d "
        "_upsample_nearest_exact1d upsample_linear1d"
    ): 1,
    """reflection_pad2d replication_pad2d avg_pool2d _adaptive_avg_pool2d max_pool2d_with_indices
    adaptive_max_pool2d max_unpool2d tril triu upsample_nearest2d _upsample_nearest_exact2d
    upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa cholesky
    linalg_cholesky_ex linalg_lu linalg_lu_factor_ex linalg_qr linalg_inv_ex _linalg_eigh linalg_eig
    _linalg_svd _linalg_det _linalg_slogdet linalg_matrix_exp linalg_ldl_factor_ex cholesky_inverse
    _linalg_eigvals geqrf""": 2,
    """reflection_pad3d replication_pad3d avg_pool3d _adaptive_avg_pool3d max_pool3d_with_indices
    adaptive_max_pool3d max_unpool3d upsample_nearest3d _upsample_nearest_exact3d
    upsample_trilinear3d pixel_shuffle pixel_unshuffle channel_shuffle im2col""": 3,
    "col2im": 2,
}.items():  # fmt: skip
    _give(_names, trailing(_core))
_give(
    (
        "clone _to_copy copy fill.Scalar fill.Tensor masked_fill.Tensor native_dropout bernoulli "
        "bernoulli.p rrelu_with_noise"
    ),
    aligned,
)
_give(
    (
        "ones_like zeros_like full_like empty_like rand_like randn_like randint_like "
        "randint_like.low_dtype zero"
    ),
    aligned,
)
_give(
    (
        "normal_functional uniform exponential hardswish log_sigmoid_forward poisson "
        "complex normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor _standard_gamma "
        "binomial bernoulli.Tensor cauchy geometric log_normal random random.from random.to "
        "floor_divide floor_divide.Scalar rrelu_with_noise_functional "
        "fake_quantize_per_tensor_affine_cachemask "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    ),
    aligned,
)
_give("new_empty new_zeros new_ones new_full new_empty_strided", lambda call: [None])
_rules.update(VIEWS)
_rules.update(INDICES)
