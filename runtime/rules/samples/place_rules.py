"""Find where the samples lie in the results of each op, by families: see :mod:`.places`.

A rule takes a :class:`.places.Placed` call and returns the places in its results: one for all of
them, or a list. ``None`` in the list: the result has no samples. An op without a rule, and without
parts that have one, mixes the samples as far as anyone knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from .place_views import VIEWS
from .places import Listed, Mixed, Place, Placed, Pooled, Tensor, one_place, pool, pool_by_counts

Rule = Callable[[Placed], Any]
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
    if torch.Tag.pointwise in op.func.tags or (record is not None and record.elementwise):
        return aligned
    return None


def _give(names: str, rule: Rule) -> None:
    """Register ``rule`` for the ops ``names``, without those that this torch does not have."""
    for name in of_this_torch(names):
        _rules[overload(name)] = rule


def leading(**cores: int) -> Rule:
    """Return the rule of ops that broadcast the leading dimensions of their arguments.

    ``cores``: by the name of an argument, the number of its other, trailing dimensions. Any other
    argument has none.
    """
    return lambda call: _by_leading(call, cores)


def trailing(core: int) -> Rule:
    """Return the rule of ops on the last ``core`` dimensions of each argument."""
    return lambda call: _by_leading(call, dict.fromkeys(call.names, core))


def _by_leading(call: Placed, cores: dict[str, int]) -> Place:
    """Return the place for :func:`leading`. Also place the arguments whose elements meet those of
    samples."""
    # how many leading dimensions each argument has, of which the last ones line up
    leads = {name: call.args[name].dim() - cores.get(name, 0) for name in call.names}
    most = max(leads.values())
    places = []
    for name, lead in leads.items():
        own = call.places.get(name)
        if own is None:
            continue
        # behind the leading dimensions come those that the op itself works on
        if own.dim >= lead:
            raise Mixed(
                f"it computes along dimension {own.dim} of {name}, which runs over the samples"
            )
        places.append(own.moved(own.dim + most - lead))
    # the arguments without samples: constant along that dimension, or one part for each sample
    place = one_place(places)
    n = place.length(call.size)
    for name, lead in leads.items():
        own, dim = call.places.get(name), place.dim - most + lead
        if own is not None:
            _require_size(call, name, own.dim, n)
        elif dim >= 0:
            if call.args[name].shape[dim] != 1:
                _require_size(call, name, dim, n)
            _place_if_met(call, name, place.moved(dim))
    return place


def _require_size(call: Placed, name: str, dim: int, n: int) -> None:
    if call.args[name].shape[dim] != n:
        raise Mixed("its arguments do not have the same number of samples")


aligned = leading()


def _product(left: str, right: str, bias: str | None = None) -> Rule:
    """Return the rule of products of matrices and vectors: rows of the left and columns of the
    right argument may be samples, and so may stacks of both."""

    def rule(call: Placed) -> Place:
        """Return the place in the product, and place the bias."""
        if call.place(left) is None and call.place(right) is None:
            assert bias is not None  # one of the three has samples
            place = _place_of_bias(call, bias)
        else:
            place = _place_of_product(call, left, right)
        if bias is not None:
            _align(call, bias, place)
        return place

    return rule


def _place_of_bias(call: Placed, bias: str) -> Place:
    """Return the place in the result of what is broadcast to it."""
    place = call.place(bias)
    assert place is not None
    return place.moved(place.dim + call.outs[0].dim() - call.args[bias].dim())


def _place_of_product(call: Placed, left: str, right: str) -> Place:
    """Return the place of rows, of columns, or of stacks."""
    left_matrix, right_matrix, rank = call.args[left], call.args[right], call.outs[0].dim()
    rows, columns = (
        _in_dim(call.place(left), left_matrix, -2),
        _in_dim(call.place(right), right_matrix, -1),
    )
    if rows is not None and call.place(right) is None:
        if right_matrix.dim() > 1:
            return rows.moved(rank - 2)
        return rows.moved(rank - 1)  # a vector adds no columns
    if columns is not None and call.place(left) is None:
        return columns.moved(rank - 1)
    cores = {left: min(2, left_matrix.dim()), right: min(2, right_matrix.dim())}
    return _by_leading(call.with_only((left, right)), cores)


def _in_dim(place: Place | None, t: Tensor, dim: int) -> Place | None:
    """Return the place in a matrix, None if the samples lie elsewhere than in dimension ``dim``,
    which counts from the end."""
    if place is None or t.dim() < 2 or place.dim != t.dim() + dim:
        return None
    return place


def _distances(call: Placed) -> Place:
    """Return the place in distances of the rows of two matrices: the rows of one of them may be
    samples, and so may stacks of both."""
    for name, other, dim in (("x1", "x2", -2), ("x2", "x1", -1)):
        place, tensor = call.place(name), call.args[name]
        if place is not None and place.dim == tensor.dim() - 2 and call.place(other) is None:
            return place.moved(call.outs[0].dim() + dim)
    return _by_leading(call, {"x1": 2, "x2": 2})


def _dot(call: Placed) -> Pooled:
    """Return the sum of products."""
    _by_leading(call, {})
    return Pooled()


def _align(call: Placed, name: str, place: Place) -> None:
    """Place the argument ``name``, which is broadcast to the result. ``place``: in the result."""
    tensor, out = call.args[name], call.outs[0]
    if tensor is None:
        return
    # dimensions line up from the right; a constant of size 1 there is the same for all samples
    own, dim = call.place(name), place.dim - out.dim() + tensor.dim()
    if own is not None:
        one_place([place, own.moved(own.dim + out.dim() - tensor.dim())])
    elif dim >= 0 and tensor.shape[dim] == out.shape[place.dim]:
        call.places[name] = place.moved(dim)


def _place_as(call: Placed, name: str, place: Place) -> None:
    """Place an optional argument. ``Mixed`` if it has the samples elsewhere."""
    if call.args.get(name) is not None:
        call.places[name] = one_place([place, call.place(name) or place])


def _has_one_run_each(place: Place | None) -> bool:
    """Return whether the elements of each sample lie together."""
    return place is not None and not isinstance(place, Listed) and place.outer == 1


def along(name: str = "dim", argument: str = "self") -> Rule:
    """Return the rule of ops that compute along dimensions, and keep them."""

    def rule(call: Placed) -> Place:
        """Return the place in the argument. ``Mixed`` if the op computes along it."""
        place, x = call.place(argument), call.args[argument]
        assert place is not None
        if place.dim in call.dims(name, x.dim()):
            raise Mixed(f"it computes along dimension {place.dim}, which runs over the samples")
        return place

    return rule


def reduced(call: Placed) -> Any:
    """Return the place in a reduction over dimensions. A sum or mean over the samples has no place,
    but is :class:`.places.Pooled`."""
    place, rank = call.place("self"), call.args["self"].dim()
    if place is None:
        raise Mixed("its first argument has no samples, and another one has")
    dims = call.dims("dim", rank)
    if place.dim in dims:
        kind = call.op.base_name
        if kind not in ("sum", "mean"):
            raise Mixed(f"it computes over dimension {place.dim}, which runs over the samples")
        return pool(place, call.size, kind == "mean")
    if call.args.get("keepdim"):
        return place
    return place.moved(place.dim - sum(dim < place.dim for dim in dims))


def _only(call: Placed, *names: str) -> None:
    """Raise unless all other arguments are the same for all samples."""
    for name, place in call.places.items():
        if isinstance(place, Place) and name not in names:
            raise Mixed(
                f"its argument {name} must be the same for all samples, and differs between them"
            )


def front(*names: str, dim: int = 0) -> Rule:
    """Return the rule of layers that have the batch in dimension ``dim`` of the named arguments and
    of all results."""

    def rule(call: Placed) -> Place:
        """Return the place, which all named arguments have."""
        _only(call, *names)
        place = one_place([own for own in map(call.place, names) if own is not None])
        if place.dim != dim:
            raise Mixed(
                f"it has the batch in dimension {dim}, and the samples lie in dimension {place.dim}"
            )
        for name in names:
            if call.args.get(name) is not None:
                call.places[name] = place
        return place

    return rule


def _normalize(call: Placed) -> Place:
    count = len(call.args["normalized_shape"])
    return _by_leading(call, dict.fromkeys(call.names, count))


def _batch_norm(call: Placed) -> object:
    """Return the places for batch norm: in training each channel must belong to one sample."""
    place = call.place("input")
    if place is None:
        raise Mixed("its weights depend on the sample")
    # as instance norm calls it, with the channels of all samples in one dimension
    if call.args["input"].dim() > 1 and place.dim == 1:
        return _instance_norm(call, place.moved(0), place)
    _only(call, "input")
    # two ops have no argument `training`, since they always take the running statistics
    evaluates = ("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
    if call.args.get("training", call.op.base_name not in evaluates):
        raise Mixed("batch norm computes its statistics over the batch. Use group norm, or eval()")
    return [place, *[None] * (len(call.outs) - 1)]


def _instance_norm(call: Placed, of_rows: Place, place: Place) -> object:
    """Return the places for batch norm of the channels of all samples together.

    ``of_rows``: the place in a tensor with one number for each channel.
    """
    for name in ("weight", "bias", "running_mean", "running_var"):
        _place_as(call, name, of_rows)
    places: list[Place | None] = [place, *[None] * (len(call.outs) - 1)]
    for index, output in enumerate(call.outs[1:], 1):
        if output.dim() == 1 and output.numel():  # statistics, not the empty reserve
            places[index] = of_rows
    return places


NONE, MEAN, SUM = range(3)
"""The values of ``reduction``."""


def _loss(*others: str) -> Rule:
    """Return the rule of losses with ``reduction``. ``others``: the arguments that broadcast with
    ``self``."""

    def rule(call: Placed) -> Any:
        names = [name for name in ("self", *others) if call.args.get(name) is not None]
        return _reduced_loss(call, _by_leading(call.with_only(names), {}))

    return rule


def _reduced_loss(call: Placed, place: Place) -> object:
    how = call.args["reduction"]
    if how == NONE:
        return place
    return pool(place, call.size, how == MEAN)


def _nll_loss(call: Placed) -> object:
    """Return the places for ``nll_loss``, whose mean weighs the targets."""
    x, place = call.args["self"], call.place("self")
    _only(call, "self", "target")
    if place is None or place.dim == 1 or x.dim() < 2:
        raise Mixed("the classes lie in dimension 1, and so do the samples")
    # targets have the dimensions of the scores but that of the classes
    shifted = place.moved(place.dim - (place.dim > 1))
    if call.place("target") not in (None, shifted):
        raise Mixed("the targets have the samples in another place than the scores")
    call.places["target"] = shifted
    if call.args["reduction"] == NONE:
        return [shifted, None]
    if call.args["reduction"] == SUM:
        return [Pooled(), None]
    # a mean divides by all weights, where a sample alone would divide by its own
    own = shifted.split_gradient(_weights_of_targets(call), call.size).flatten(1).sum(1)
    if own[0] > 0 and bool((own == own[0]).all()):
        return [Pooled(call.size), None]
    return [pool_by_counts(own), None]


def _weights_of_targets(call: Placed) -> Tensor:
    """Return what each target counts in the mean of ``nll_loss``."""
    target, weight = call.args["target"], call.args["weight"]
    counts: Tensor = (target != call.args["ignore_index"]).to(call.args["self"].dtype)
    if weight is None:
        return counts
    # an ignored target may be negative
    weights: Tensor = weight[target.clamp_min(0)]
    return counts * weights


def _margin_loss(call: Placed) -> object:
    """Return the places for losses of scores (B, C) or (C,) and one target for each row."""
    cores = {"self": 1, "target": int(call.op.base_name == "multilabel_margin_loss_forward")}
    _only(call, *cores)
    place = _by_leading(call.with_only(cores), cores)
    return [_reduced_loss(call, place), *([place] * (len(call.outs) - 1))]


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
            _place_if_met(call, name, place.moved(dims.index(place.dim)))
    return place.moved(place.dim - sum(dim < place.dim for dim in summed))


def _place_if_met(call: Placed, name: str, place: Place) -> None:
    """Place an argument without samples if it has an element for each of those in ``place``."""
    if call.args[name].shape[place.dim] == place.length(call.size):
        call.places[name] = place


def _other_dims(dims: Sequence[int], rank: int) -> list[int]:
    named = {dim % rank for dim in dims}
    return [dim for dim in range(rank) if dim not in named]


def _embedding_bag(call: Placed) -> object:
    """Return the places for bags of rows. Each sample must have whole bags, one after the other."""
    place, offsets = call.place("indices"), call.args["offsets"]
    bags = call.outs[0].shape[0]
    _only(call, "indices", "per_sample_weights")
    if place is not None:
        _place_as(call, "per_sample_weights", place)
    if place is None or not _has_one_run_each(place) or bags % call.size:
        raise Mixed(
            "the bags of a sample are not known. Give the indices as a matrix with one row per bag"
        )
    # the first bag of each sample must start at its first index
    starts = offsets[:bags].reshape(call.size, -1)[:, 0]
    if not torch.equal(starts, torch.arange(0, call.size, device=starts.device) * place.inner):
        raise Mixed("a bag has the indices of several samples")
    return [Place(0, 1, bags // call.size), *[None] * (len(call.outs) - 1)]


def _recurrent(call: Placed) -> object:
    """Return the places for a layer over time, in its outputs and last states."""
    place = call.place("input")
    _only(call, "input", "hx_", "cx_")
    if place is None or place.dim != 1:
        raise Mixed("a recurrent layer has the batch in dimension 1 of its input")
    for name in ("hx_", "cx_"):
        if call.args.get(name) is not None:
            _place_as(call, name, place.moved(call.args[name].dim() - 2))
    places: list[Place | None] = [place, *[None] * (len(call.outs) - 1)]
    for index, output in enumerate(call.outs[1:], 1):
        if output.dim() > 1:  # a state, not the workspace
            places[index] = place.moved(output.dim() - 2)
    return places


def _pad(call: Placed) -> Place:
    """Return the place in a padded tensor. ``pad`` may name dimensions that it leaves as they
    are."""
    # two numbers for each dimension, of the last one first
    padded = [index // 2 for index, width in enumerate(call.args["pad"]) if width]
    return _by_leading(call, {"self": 1 + max(padded, default=-1)})


def _fractional_pool(call: Placed) -> Place:
    """Return the place in a pooled tensor. Each sample has random numbers of its own."""
    if call.args["self"].dim() != len(call.args["kernel_size"]) + 2:
        raise Mixed("it pools one sample. Give it a batch, with one more dimension in front")
    return front("self", "random_samples")(call)  # type: ignore[no-any-return]


def _search(call: Placed) -> Place:
    """Return the place in the positions of numbers among sorted ones: one row of these for all, or
    one for each row of numbers."""
    rows = int(call.args["sorted_sequence"].dim() > 1)
    return _by_leading(call, {"sorted_sequence": 1, "sorter": 1, "self": rows})


def _least_squares(call: Placed) -> list[Place | None]:
    """Return the places in a solution of least squares, its residuals, and the rank and singular
    values of the matrix."""
    matrix, right = call.args["self"], call.args["b"]
    # torch takes it for vectors by its shape, and for one vector by its rank
    is_of_vectors = right.dim() == 1 or right.shape == matrix.shape[:-1]
    place = _by_leading(call, {"self": 2, "b": 2 - is_of_vectors})
    # a result that was not asked for is empty
    return [place if output.numel() else None for output in call.outs]


def _per_channel(call: Placed) -> Place:
    """Return the place in what is rounded with a scale for each channel."""
    _only(call, "self")
    return along("axis")(call)  # type: ignore[no-any-return]


def _solve_rule(right: str, **cores: int) -> Rule:
    """Return the rule of ``solve(A, B)``, where B is a matrix or a vector.

    Stacks of both may be samples, and so may columns of B, or its rows if ``left`` is False.
    ``right``: the name of B. ``cores``: the dimensions of A and of its factors.
    """

    def rule(call: Placed) -> Any:
        """Return the place in the solution: a free dimension of B, or a leading one."""
        tensor, place = call.args[right], call.place(right)
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
        return _by_leading(call, {right: core, **cores})

    return rule


def _cross(call: Placed) -> Place:
    place = aligned(call)
    if call.args["dim"] % call.outs[0].dim() == place.dim:
        raise Mixed(f"it computes along dimension {place.dim}, which runs over the samples")
    return place  # type: ignore[no-any-return]


def _convolution(call: Placed) -> Place:
    """Return the place in a convolution: the samples are the batch, the weights of output channels,
    or groups of channels, each with weights of its own."""
    of_x, of_weight = call.place("input"), call.place("weight")
    # Samples in dimension 0 of the weight have output channels of their own. Their input is the
    # same for all, or lies in groups of channels.
    is_in_channels = of_x is None or of_x.dim == 1
    if of_weight is None or of_weight.dim != 0 or not is_in_channels:
        return front("input")(call)  # type: ignore[no-any-return]
    if of_x is None and call.args["groups"] == 1 and not call.args["transposed"]:
        place = of_weight.moved(1)
    else:
        place = _place_of_groups(call)
    # the bias has one number for each output channel
    _place_as(call, "bias", place.moved(0))
    return place


def _place_of_groups(call: Placed) -> Place:
    """Return the place in the result of a convolution in which each sample has groups of its
    own."""
    runs = _has_one_run_each(call.place("input")) and _has_one_run_each(call.place("weight"))
    if call.args["groups"] % call.size or not runs:
        raise Mixed("groups of channels are not the samples")
    return Place(1, 1, call.outs[0].shape[1] // call.size)


def _diag_embedded(call: Placed) -> Place:
    """Return the place in matrices with these diagonals."""
    rank = call.outs[0].dim()
    dims = {call.args["dim1"] % rank, call.args["dim2"] % rank}
    if dims != {rank - 2, rank - 1}:
        raise Mixed("its dimensions are not the last ones")
    return _by_leading(call, {"self": 1})


def _log_probs(call: Placed) -> object:
    """Return the place in the losses of ``ctc_loss``, for scores (T, B, C)."""
    place = call.place("log_probs")
    _only(call, "log_probs", "targets")
    if place != Place(1) or call.args["targets"].dim() != 2:
        raise Mixed(
            "ctc_loss has the batch in dimension 1 of the scores, and needs the targets as a matrix"
        )
    return Place(0)


for _name, _args in {
    "bmm": ("self", "mat2"), "mm": ("self", "mat2"), "mv": ("self", "vec"),
    "baddbmm": ("batch1", "batch2", "self"), "addmm": ("mat1", "mat2", "self"),
    "addmv": ("mat", "vec", "self"), }.items():  # fmt: skip
    _give(_name, _product(*_args))
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
_give("multi_margin_loss multilabel_margin_loss_forward", _margin_loss)
_give("_fft_c2c _fft_r2c _fft_c2r", along())
_give("native_layer_norm _fused_rms_norm", _normalize)
_give("native_group_norm", front("input"))
_give("convolution", _convolution)
_give("dot vdot", _dot)
_give("grid_sampler_2d grid_sampler_3d", front("input", "grid"))
_give(
    (
        "native_batch_norm _native_batch_norm_legit_functional _native_batch_norm_legit "
        "_native_batch_norm_legit.no_stats"
    ),
    _batch_norm,
)
_give(
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update",
    _batch_norm,
)
_give("mse_loss smooth_l1_loss huber_loss soft_margin_loss", _loss("target"))
_give("binary_cross_entropy", _loss("target", "weight"))
_give("binary_cross_entropy_with_logits", _loss("target", "weight", "pos_weight"))
_give("nll_loss_forward nll_loss2d_forward", _nll_loss)
_give("_ctc_loss _ctc_loss.Tensor", _log_probs)
_give("_embedding_bag _embedding_bag_forward_only", _embedding_bag)
_give("mkldnn_rnn_layer", _recurrent)
_give("_scaled_dot_product_flash_attention_for_cpu", trailing(2))
_give("constant_pad_nd", _pad)
for _name, _own_rule in {
    "fractional_max_pool2d fractional_max_pool3d": _fractional_pool,
    "conv_tbc": front("self", dim=1),
    "affine_grid_generator": front("theta"),
    "searchsorted.Tensor": _search,
    "bucketize.Tensor": leading(boundaries=1),
    "isin.Tensor_Tensor": place_isin,
    "renorm": place_renorm,
    "rot90": along("dims"),
    "linalg_pinv.atol_rtol_tensor": leading(self=2),
    "linalg_lstsq": _least_squares,
    "fake_quantize_per_channel_affine_cachemask": _per_channel,
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
