"""Indexing, questions and unrecorded writes run straight on what a tensor holds. Torch's engine on
the same values is the oracle."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime.autograd import forward_ad

from ..view_scenarios import OURS, TORCH, Scenario, gradients, outcome, same, shown

INDICES = {
    "one row": (0,),
    "last row": (-1,),
    "an element": (0, 1, 2),
    "a column": (slice(None), 1),
    "the last column": (Ellipsis, -1),
    "all": (slice(None),),
    "all of two": (slice(None), slice(None)),
    "dots": (Ellipsis,),
    "nothing": (),
    "new": (None,),
    "new before": (None, 0),
    "new after": (Ellipsis, None),
    "between": (0, None, Ellipsis, 1),
    "a range": (slice(0, 3),),
    "more than all": (slice(0, 9), 1),
    "from the end": (slice(-2, None), 0),
    "steps": (slice(None, 2), slice(None, None, 2)),
    "dots in the middle": (0, Ellipsis, slice(1, 3)),
    "an empty range": (slice(2, 1),),
    "dots for nothing": (0, 1, Ellipsis, 2),
}
MODES = {"recorded": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def nodes(t: Any) -> list[Any]:
    """The chain behind a tensor with what each node keeps, as long as there is one edge."""
    found, node = [], t.grad_fn
    while node is not None:
        kept = (
            {a: getattr(node, a) for a in dir(node) if a.startswith("_saved_")}
            if node.next_functions
            else {}
        )
        found.append(
            (
                node.name(),
                {
                    name: tuple(v) if isinstance(v, (tuple, list)) else v % 2**64
                    for name, v in kept.items()
                },
            )
        )
        node = node.next_functions[0][0] if node.next_functions else None
    return found


def agree(scenario: Scenario) -> None:
    """As :func:`same`, for a scenario that torch may refuse; of other errors than RuntimeError the
    type is compared."""

    def found(lib: Any) -> Any:
        try:
            return outcome(scenario, lib)
        except (IndexError, TypeError, ValueError) as e:
            return type(e)

    assert found(OURS) == found(TORCH)


def facts(t: Any) -> Any:
    version = None if t.is_inference() else t._version
    return (
        list(t.shape),
        list(t.stride()),
        t.storage_offset(),
        t.requires_grad,
        t.is_leaf,
        version,
        t._is_view(),
    )


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_an_index_has_torchs_result_nodes_and_gradient(
    index: tuple[Any, ...], mode: Callable[[], Any], arrived: list[str]
) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(3, 4, 5)
        arrived.clear()
        with mode():
            y = x[index]
            alone = x[index[0]] if len(index) == 1 else y
        assert arrived == []
        if not y.requires_grad:
            return y, facts(y), facts(alone)
        return (
            y,
            facts(y),
            nodes(y),
            nodes(alone),
            y._base is x,
            gradients(lib, (y * y).sum() + alone.sum(), x),
        )

    same(scenario)


@pytest.mark.parametrize(
    "index",
    [(0, 1, 2, 3), (7,), (slice(None, None, -1),), (Ellipsis, 0, Ellipsis), ("a",), (1.0,)],
    ids=str,
)
@pytest.mark.parametrize("recorded", [True, False])
def test_what_torch_refuses_is_refused(index: tuple[Any, ...], recorded: bool) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(3, 4, 5)
        return (x if recorded else x.detach())[index]

    agree(scenario)


@pytest.mark.parametrize(
    "index", [3, -4, (1, 4), (slice(None), -5), (Ellipsis, 5), (None, 0, 0, -6)], ids=str
)
@pytest.mark.parametrize("written", [False, True])
def test_an_element_that_is_not_there_is_told_by_its_dimension(index: Any, written: bool) -> None:
    said = []
    for lib in (TORCH, OURS):
        x = lib.leaf(3, 4, 5) * 2
        with pytest.raises(IndexError, match="is out of bounds for dimension") as error:
            x.__setitem__(index, 1.0) if written else x[index]
        said.append(str(error.value))
    assert said[0] == said[1]


def test_a_write_of_all_to_a_leaf_is_refused_as_one_to_the_leaf_itself() -> None:
    for index in (slice(None), Ellipsis, ()):
        with pytest.raises(
            RuntimeError,
            match=r"^a leaf Variable that requires grad is being used in an in-place operation",
        ):
            OURS.leaf(3)[index] = 1.0


LISTS = [
    [0, 1],
    [[0, 2]],
    [[0, 1], [1, 2]],
    ([[0, 1], [1, 2]],),
    [slice(None), [1, 3]],
    [None, [1, 2]],
    [Ellipsis, 0],
]


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([0, 2]),
        torch.tensor(1),
        True,
        (0, torch.tensor([1, 0])),
        torch.ones(3) > 0,
        *LISTS,
    ],
    ids=str,
)
@pytest.mark.filterwarnings(
    "ignore:Using a non-tuple sequence for multidimensional indexing:UserWarning"
)
def test_other_indices_are_torchs(index: Any, arrived: list[str]) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(3, 4, 5)
        return x[index], gradients(lib, x[index], x)

    same(scenario)
    assert arrived


@pytest.mark.parametrize("target", ["buffer", "product", "view", "view of a view"])
@pytest.mark.parametrize(
    "value", ["number", "element", "same shape", "broadcast", "recorded", "recorded same shape"]
)
@pytest.mark.parametrize(
    "index",
    [(0, 1), (slice(0, 2), 1), (0,), (Ellipsis, 2), slice(None), (Ellipsis, slice(0, 3)), ()],
    ids=str,
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_a_write_has_torchs_values_versions_and_history(
    target: str, value: str, index: Any, mode: Any
) -> None:
    def scenario(lib: Any) -> Any:
        x, v = lib.leaf(3, 4, 3), lib.leaf()
        base = x.detach().clone() if target == "buffer" else x * 2
        other = base.view(12, 3)
        written = {"view": base.view(3, 4, 3), "view of a view": other.view(3, 4, 3)}.get(
            target, base
        )
        shape = written[index].shape
        given: Any = {
            "number": 2.5,
            "element": v.detach(),
            "same shape": torch.ones(shape, dtype=x.dtype),
            "broadcast": v.detach().view(1, 1),
            "recorded": v,
            "recorded same shape": v.expand(shape),
        }[value]
        with mode():
            written[index] = given
        found = [
            base,
            written,
            other,
            base._version,
            other._version,
            written.requires_grad,
            base.requires_grad,
            other.requires_grad,
        ]
        if not base.requires_grad:
            return found
        names = [t.grad_fn.name() for t in (base, written)]
        kinds = [None if n is None else n.name() for n, _ in base.grad_fn.next_functions]
        return *found, names, kinds, gradients(lib, base * other.view(3, 4, 3) * written, x, v)

    agree(scenario)


CLONED: dict[str, Callable[[Any], Any]] = {
    "leaf": lambda x: x,
    "constant": lambda x: x.detach(),
    "product": lambda x: x * 2,
    "transposed": lambda x: x.mT,
    "expanded": lambda x: x[0].expand(2, 4),
    "written view": lambda x: (x * 1).mul_(3)[1:],
    "conjugate": lambda x: torch.complex(x, x).conj().real,
    "nothing": lambda x: x[:0],
    "integers": lambda x: x.argsort(),
}


@pytest.mark.parametrize("made", CLONED.values(), ids=CLONED)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    "options", [{}, {"memory_format": torch.contiguous_format}], ids=["plain", "contiguous"]
)
def test_a_clone_has_torchs_layout_history_and_gradient(
    made: Any, mode: Any, options: dict[str, Any]
) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(3, 4)
        source = made(x)
        with mode():
            y = source.clone(**options)
        y_facts = y, facts(y), y.data_ptr() != source.data_ptr() or not y.numel(), source._version
        if not y.requires_grad:
            return y_facts
        z = y.clone()
        y.mul_(2)
        return *y_facts, z.grad_fn.name(), gradients(lib, (y * z).sum(), x)

    same(scenario)


def test_a_write_to_a_leaf_is_refused_but_under_no_grad() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(3)
        with torch.no_grad():
            x[0] = 1.0
        x[0] = 2.0

    same(scenario, error=True)


def test_a_saved_tensor_that_an_index_wrote_to_is_refused() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(3)
        w = x.detach().clone()
        y = x * w
        w[0] = 1.0
        return gradients(lib, y, x)

    same(scenario, error=True)


QUESTIONS = {
    "bool": bool,
    "float": float,
    "int": int,
    "item": lambda t: t.item(),
    "index": lambda t: [*range(4)][t],
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(1),
        lambda: torch.tensor(1.5),
        lambda: torch.ones(2),
        lambda: torch.tensor(True),
    ],
)
def test_questions_about_a_number_are_torchs(
    ask: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    agree(lambda lib: ask(make() if lib is TORCH else runtime.wrap(make())))


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda x, y: x == y,
    "lt a number": lambda x, y: x < 2,
    "number ge": lambda x, y: 2 >= x,  # noqa: SIM300
    "ne None": lambda x, y: x != None,  # noqa: E711
    "eq a string": lambda x, y: x == "a",
    "eq another shape": lambda x, y: x == torch.ones(2),
    "all": lambda x, y: (x == y).all(),
    "all of a dimension": lambda x, y: (x > y).all(0),
    "any by keyword": lambda x, y: (x > y).any(dim=0, keepdim=True),
    "a plain tensor": lambda x, y: x == torch.ones(3, dtype=x.dtype),
}


@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=COMPARISONS)
def test_comparisons_have_torchs_results_and_no_history(compare: Callable[[Any, Any], Any]) -> None:
    def scenario(lib: Any) -> Any:
        found = compare(lib.leaf(3), lib.leaf(3).detach().flip(0))
        return (
            (found, facts(found), isinstance(found, runtime.Tensor) or lib is TORCH)
            if isinstance(found, torch.Tensor)
            else found
        )

    agree(scenario)


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda x, y: x.add_(y, alpha=2),
    "number": lambda x, y: x.mul_(2),
    "+=": lambda x, y: x.__iadd__(y),
    "copy_": lambda x, y: x.copy_(y),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.5),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y),
    "lerp_": lambda x, y: x.lerp_(y, 0.3),
    "zero_": lambda x, y: x.zero_(),
    "fill_": lambda x, y: x.fill_(y.sum()),
    "lerp_ by keyword": lambda x, y: x.lerp_(end=y, weight=0.3),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("target", ["leaf", "constant", "product", "view", "view of a constant"])
@pytest.mark.parametrize("operand", ["recorded", "constant"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_an_in_place_method_leaves_what_torchs_leaves(
    write: Any, target: str, operand: str, mode: Any
) -> None:
    def scenario(lib: Any) -> Any:
        x, y = lib.leaf(3), lib.leaf(3)
        base = {
            "leaf": x,
            "constant": x.detach().clone(),
            "view of a constant": x.detach().clone(),
        }.get(target, x * 1)
        t = base.view(3) if target.startswith("view") else base
        with mode():
            out = write(t, y if operand == "recorded" else y.detach())
        found = [
            t,
            base,
            out is t,
            t._version,
            base._version,
            t.requires_grad,
            base.requires_grad,
            t.is_leaf,
        ]
        if not base.requires_grad or base.is_leaf:
            return found
        return *found, base.grad_fn.name(), t.grad_fn.name(), gradients(lib, base * t, x, y)

    agree(scenario)


def test_a_view_of_what_was_written_without_grad_asks_for_its_history_anew() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(4)
        y = x * 2
        row = y[0]
        with torch.no_grad():
            y.mul_(3)
            y[1] = 5.0
        return row.grad_fn.name(), gradients(lib, row * y, x)

    same(scenario)


def test_a_dispatch_mode_sees_every_part() -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    x = runtime.wrap(torch.ones(2, 3))
    watch: Any = Watch
    with watch(), torch.no_grad():
        x[0, 1] = x[1, 2]
        assert bool(x[0, 0])
        x.mul_(2)
    wanted = {"aten::select", "aten::copy_", "aten::_local_scalar_dense", "aten::mul_"}
    assert wanted <= set(seen)


def test_a_function_mode_sees_the_methods() -> None:
    seen: list[Any] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = runtime.wrap(torch.ones(2, 3))
    with Watch():
        x[0, 1] = x[1, 2]
        bool(x[0, 0])
        x.mul_(2)
    wanted = {
        torch.Tensor.__getitem__,
        torch.Tensor.__setitem__,
        torch.Tensor.__bool__,
        torch.Tensor.mul_,
    }
    assert wanted <= set(seen)


def test_tangents_go_through_an_index_and_a_write() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(OURS.leaf(3).detach(), torch.ones(3, dtype=torch.float64))
        y = x * 2
        part = y[1]
        tangent: Any = forward_ad.unpack_dual(part).tangent
        assert float(tangent) == 2.0
        with torch.no_grad():
            y[1] = 0.0
            y.mul_(3)
        written: Any = forward_ad.unpack_dual(y).tangent
        assert written.tolist() == [6.0, 0.0, 6.0]


def _written(target: Any, write: Callable[[Any], Any]) -> Any:
    write(target)
    return target


# of a tensor that torch recorded, and of another one
THROUGH: dict[str, Callable[[Any, Any], Any]] = {
    "an element": lambda marked, x: marked[0],
    "a part": lambda marked, x: marked[:, None],
    "a copy": lambda marked, x: marked.clone(),
    "an element that is written into another": lambda marked, x: _written(
        x * 2, lambda y: y.__setitem__(0, marked[0])
    ),
    "a part that is written into another": lambda marked, x: _written(
        x * 2, lambda y: y.__setitem__(slice(0, 2), marked[:2])
    ),
    "a number that is written into it": lambda marked, x: _written(
        marked, lambda y: y.__setitem__(0, 1.0)
    ),
    "another that is written into it": lambda marked, x: _written(
        marked, lambda y: y.__setitem__(0, x[0])
    ),
    "a product in place": lambda marked, x: _written(marked, lambda y: y.mul_(2)),
    "a product of another with it in place": lambda marked, x: _written(
        x * 2, lambda y: y.mul_(marked)
    ),
    "a constant that it is copied to": lambda marked, x: _written(
        x.detach().clone(), lambda y: y.copy_(marked)
    ),
    "a linear layer": lambda marked, x: torch.nn.functional.linear(
        marked, torch.ones(2, 3), torch.ones(2)
    ),
    "a product of matrices": lambda marked, x: torch.matmul(marked[None], torch.ones(3, 2)),
    "a normalization": lambda marked, x: torch.nn.functional.layer_norm(marked, (3,)),
}


@pytest.mark.parametrize("name", THROUGH)
def test_what_comes_from_a_tensor_of_torchs_engine_is_refused_in_a_pass_for_all_leaves(
    name: str,
) -> None:
    other, x = torch.ones(3, requires_grad=True), runtime.wrap(torch.ones(3), requires_grad=True)
    found = THROUGH[name](x * other, x)
    with pytest.raises(
        RuntimeError,
        match=(
            "element 0 of tensors was computed from a plain torch tensor that "
            "requires grad by torch's own"
        ),
    ):
        found.sum().backward()
    with runtime.autograd.no_grad():
        unrecorded = THROUGH[name]((x * other).detach(), x.detach())
    assert not unrecorded.requires_grad


@pytest.mark.parametrize("name", THROUGH)
def test_gradients_of_what_is_named_are_right_beside_torchs_engine(name: str) -> None:
    x, alone = (
        runtime.wrap(torch.arange(3.0), requires_grad=True),
        torch.arange(3.0, requires_grad=True),
    )
    twos = torch.full((3,), 2.0)
    (expected,) = torch.autograd.grad(THROUGH[name](alone * twos, alone).square().sum(), alone)
    (found,) = runtime.autograd.grad(
        THROUGH[name](x * twos.requires_grad_(), x).square().sum(), x, allow_unused=True
    )
    torch.testing.assert_close(runtime.unwrap(found), expected)


Call = Callable[[Any, Any], Any]  # of a tensor of shape (2, 2) and another one
ALONE = [
    "exp_",
    "log_",
    "neg_",
    "reciprocal_",
    "relu_",
    "round_",
    "rsqrt_",
    "sigmoid_",
    "sign_",
    "sqrt_",
    "square_",
    "tanh_",
    "tril_",
    "triu_",
    "zero_",
    "bernoulli_",
    "exponential_",
    "normal_",
    "random_",
    "uniform_",
]
OF_ANOTHER = [
    "__iadd__",
    "__imul__",
    "__isub__",
    "__itruediv__",
    "add_",
    "mul_",
    "sub_",
    "div_",
    "pow_",
    "copy_",
]


def _calling(name: str, others: int) -> Call:
    """A call of a method with the other tensor so often."""
    return lambda x, y: getattr(x, name)(*[y] * others)


COMPARED: dict[str, Call] = {
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    ">": lambda x, y: x > y,
    "<=": lambda x, y: x <= y,
    ">= a number": lambda x, y: x >= 2,
    "< a number": lambda x, y: x < 2.5,
    "all": lambda x, y: (x > 0).all(),
    "any": lambda x, y: (x > 9).any(),
    "all of a dimension": lambda x, y: (x > 2).all(0),
}
UNRECORDED: dict[str, Call] = {
    **{name: _calling(name, 0) for name in ALONE},
    **{name: _calling(name, 1) for name in OF_ANOTHER},
    **{name: _calling(name, 2) for name in ("addcdiv_", "addcmul_", "addmm_")},
    "addmv_": lambda x, y: x[0].addmv_(y, y[0]),
    "lerp_": lambda x, y: x.lerp_(y, 0.25),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 2, 0.5),
    "add_ by keyword": lambda x, y: x.add_(y, alpha=3),
    "clamp_": lambda x, y: x.clamp_(1.5, 2.5),
    "clamp_max_": lambda x, y: x.clamp_max_(1.5),
    "clamp_min_": lambda x, y: x.clamp_min_(1.5),
    "fill_": lambda x, y: x.fill_(3.0),
    "fill_ by keyword": lambda x, y: x.fill_(value=3.0),
    "an element": lambda x, y: x[0, 1],
    "a slice": lambda x, y: x[:, 1:],
    "all": lambda x, y: x[...],
    "an element that is written": lambda x, y: x.__setitem__((0, 1), 7.0),
    "a row that is written": lambda x, y: x.__setitem__(1, y[0]),
    "a copy": lambda x, y: x.clone(),
    "an item": lambda x, y: x[0, 1].item(),
    "a truth": lambda x, y: bool(x[0, 1] > 1),
    "a float": lambda x, y: float(x[0, 1]),
    "an int": lambda x, y: int(x[0, 1]),
    "an index of a list": lambda x, y: [0, 1, 2, 3][x[0, 1] > 0],
    **{f"compared: {name}": compare for name, compare in COMPARED.items()},
}


def test_a_call_that_is_recorded_passes_the_dispatcher(arrived: list[str]) -> None:
    OURS.leaf(2).sinh()
    assert arrived


# with whether the tensor is a leaf under no_grad, or a constant
CALLS = [
    *((name, True) for name in UNRECORDED),
    *((name, False) for name in UNRECORDED if name != "addmv_"),  # a write through a view
]


@pytest.mark.parametrize(("name", "leaf"), CALLS)
def test_a_call_that_is_not_recorded_passes_no_dispatcher(
    name: str, leaf: bool, arrived: list[str]
) -> None:
    def found(lib: Any) -> Any:
        x, y = lib.leaf(2, 2), lib.leaf(2, 2).detach()
        x = x if leaf else x.detach()
        version, arrived[:] = x._version, []
        torch.manual_seed(0)
        with torch.no_grad() if leaf else torch.enable_grad():
            out = UNRECORDED[name](x, y)
        assert arrived == []
        return shown(out), shown(x), x._version - version, out is x

    assert found(OURS) == found(TORCH)
