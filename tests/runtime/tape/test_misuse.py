"""Errors for misuse of passes, nodes, saved tensors and Functions. Torch is the oracle
where it raises one."""

import re
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.autograd import Function, SavedTensor
from runtime.autograd.function import InplaceFunction
from runtime.errors import EscapedValue, MissingRule

from ..scenarios import OURS, same


def leaf(lib: Any = OURS) -> Any:
    return lib.tensor([1.0, 2.0], requires_grad=True)


def function(base: Any, **methods: Any) -> Any:
    defaults = {"forward": lambda ctx, x: x * 2, "backward": lambda ctx, g: g * 2}
    return type(
        "Doubled", (base,), {k: staticmethod(v) for k, v in {**defaults, **methods}.items()}
    )


# ---- passes


def test_outputs_of_several_levels_run_at_the_innermost() -> None:
    w = OURS.tensor([3.0], requires_grad=True)

    def f(x: Any) -> Any:
        for outputs in (
            [(w * w).sum(), (x * x).sum()],
            [(x * x).sum(), (w * w).sum()],
            [(x * x).sum(), (x * w).sum()],
        ):
            found.append(OURS.autograd.grad(outputs, x, retain_graph=True)[0].tolist())
        return x.sum()

    found: list[Any] = []
    runtime.func.grad(f)(torch.ones(1))
    assert found == [[2.0], [2.0], [5.0]]


class _Named(UserDict):  # type: ignore[type-arg]
    """A mapping that is no dict."""


@pytest.mark.parametrize(
    "call",
    [
        lambda lib, x: lib.autograd.backward(
            x.sum(), lib.tensor(2.0), grad_variables=lib.tensor(2.0)
        ),
        lambda lib, x: lib.autograd.grad([x.sum(), x.sum()], x, [None]),
        lambda lib, x: lib.autograd.grad((x * 2).sum(), x, [lib.tensor([[1.0]])]),
        lambda lib, x: lib.autograd.grad(x.detach().sum(), x),
        lambda lib, x: lib.autograd.grad([x.sum(), x.detach().sum()], x),
        lambda lib, x: lib.autograd.grad(x.sum(), (lib.graph.get_gradient_edge(x), 3)),
        lambda lib, x: (lambda h: h(x))(lib.graph.register_multi_grad_hook([x], print).handles[0]),
    ],
)
@pytest.mark.filterwarnings("ignore:`grad_variables` is deprecated")
def test_a_pass_that_cannot_start_ends_as_in_torch(call: Any) -> None:
    assert same(lambda lib: call(lib, leaf(lib)))[0] in ("RuntimeError", "TypeError")


def test_inputs_in_another_mapping_than_a_dict_are_refused() -> None:
    x = leaf()
    calls: list[Any] = [
        lambda: OURS.autograd.grad(x.sum(), _Named(x=x)),
        lambda: OURS.autograd.backward(x.sum(), inputs=_Named(x=x)),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"must be a dict, not _Named\. Pass dict\(inputs\)"):
            call()
    assert list(OURS.autograd.grad(x.sum(), dict(_Named(x=x)))) == ["x"]


@pytest.mark.usefixtures("routed")
def test_the_engine_is_asked_about_nodes_only_and_not_about_leaves_of_grad() -> None:
    x = leaf()
    y = x * 2
    (end, _) = y.grad_fn.next_functions[0]
    said: list[Any] = []

    def ask(g: Any) -> None:
        for node in (3, None, x, end, y.grad_fn):
            try:
                said.append(torch._C._will_engine_execute_node(node))  # type: ignore[arg-type]
            except RuntimeError as e:
                said.append(str(e).split(",")[0].split(" but")[0])

    y.register_hook(ask)
    wrong = ["_will_engine_execute_node expects an grad_fn"] * 3
    leaf_of_grad = "A leaf node was passed to _will_engine_execute_node"
    y.sum().backward(retain_graph=True)
    assert said == [*wrong, True, True]
    said.clear()
    y.sum().backward(inputs=[x], retain_graph=True)
    assert said == [*wrong, True, True]
    said.clear()
    OURS.autograd.grad(y.sum(), x)
    assert said == [*wrong, leaf_of_grad, True]


def test_a_node_that_gives_another_number_of_gradients_than_it_has_inputs_is_named() -> None:
    x = leaf()
    y = x * 2

    class Short(type(y.grad_fn)):  # type: ignore[misc]
        __slots__ = ()

        def apply(self, *args: Any) -> Any:
            return []

    y.grad_fn.__class__ = Short
    with pytest.raises(
        RuntimeError,
        match="Function Short returned an invalid number of gradients - got 0 but expected 1",
    ):
        y.sum().backward()


def test_what_a_node_did_not_save_is_told_from_what_it_has_freed() -> None:
    x = leaf()
    product, constant = x * x, x * 2
    with pytest.raises(AttributeError, match="'MulBackward0' object has saved no 'self'"):
        _ = constant.grad_fn._saved_self
    node = product.grad_fn
    assert "_saved_self" not in dir(constant.grad_fn) and {"_saved_self", "_raw_saved_self"} <= set(
        dir(node)
    )
    product.sum().backward()
    for name in ("_saved_self", "_raw_saved_self", "_saved_other"):
        with pytest.raises(RuntimeError, match="have already been freed"):
            getattr(node, name)
    with pytest.raises(RuntimeError, match="have already been freed"):
        node(OURS.tensor([1.0, 1.0]))


def test_saved_tensors_are_made_by_the_tape_alone() -> None:
    with pytest.raises(
        RuntimeError, match="Trying to create a SavedTensor object from Python is forbidden"
    ):
        SavedTensor()
    fn = function(Function, forward=lambda ctx, x: ctx.save_for_backward(None, x) or x * 2)
    node = fn.apply(leaf()).grad_fn
    none, some = node._raw_saved_tensors
    assert (
        none.data is None
        and none.unpack() is None
        and none.unpack_hook is None
        and some.unpack().tolist() == [1.0, 2.0]
    )
    with pytest.raises(
        RuntimeError, match="register_hooks on a saved tensor with value None is forbidden"
    ):
        none.register_hooks(lambda t: t, lambda t: t)
    some.register_hooks(lambda t: "packed", lambda t: torch.zeros(2))
    assert (
        some.data == "packed"
        and callable(some.unpack_hook)
        and node.saved_tensors[1].tolist() == [0.0, 0.0]
    )
    for one in ((None, lambda t: t), (lambda t: t, None), ()):
        with pytest.raises(TypeError, match="two callables are needed"):
            node._raw_saved_tensors[0].register_hooks(*one)
    node(OURS.tensor([1.0, 1.0]))
    node.release()
    for freed in (lambda: node._raw_saved_tensors, lambda: node.saved_tensors, some.unpack):
        with pytest.raises(RuntimeError, match="have already been freed"):
            freed()


@pytest.mark.parametrize("of", ["op", "Function", "packed"])
def test_an_inference_tensor_is_not_saved(of: str) -> None:
    def scenario(lib: Any) -> Any:
        with torch.inference_mode():
            constant = lib.tensor([3.0, 4.0])
        x = leaf(lib)
        if of == "Function":
            saving = function(
                lib.autograd.Function,
                forward=lambda ctx, x: ctx.save_for_backward(constant) or x * 2,
            )
            return saving.apply(x)
        if of == "packed":
            with lib.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                return x * constant
        return x * constant

    if of == "packed":
        with pytest.raises(RuntimeError, match=r"[Ii]nference tensor"):
            scenario(OURS)
    else:
        assert same(scenario)[1].startswith("Inference tensors cannot be saved for backward")


# ---- Functions


@pytest.mark.parametrize(
    ("forward", "jvp"),
    [
        (lambda ctx, x: x * 2, lambda ctx, t: (t, t)),
        (lambda ctx, x: (x * 2, x * 3), lambda ctx, t: t),
        (lambda ctx, x: x * 2, lambda ctx, t: 3),
        (lambda ctx, x: x * 2, lambda ctx, t: t.sum()),
        (lambda ctx, x: x * 2, lambda ctx, t: t[:1]),
        (lambda ctx, x: (x * 2, 5), lambda ctx, t: (t * 2, None)),
        (lambda ctx, x: (x * 2, x.long()), lambda ctx, t: (t * 2, None)),
        (lambda ctx, x: (x * 2, x.long()), lambda ctx, t: (t * 2, t)),
        (lambda ctx, x: x * 2, lambda ctx, t: [t]),
    ],
)
def test_what_jvp_may_return(forward: Any, jvp: Any) -> None:
    def scenario(lib: Any) -> Any:
        fw = lib.autograd.forward_ad
        with fw.dual_level():
            d = fw.make_dual(lib.tensor([1.0, 2.0]), lib.tensor([3.0, 4.0]))
            out = function(lib.autograd.Function, forward=forward, jvp=jvp).apply(d)
            each = out if isinstance(out, tuple) else (out,)
            return [fw.unpack_dual(o).tangent if isinstance(o, torch.Tensor) else o for o in each]

    same(scenario)


def test_jvp_may_say_that_an_output_has_no_tangent() -> None:
    """Here torch fails with an internal assertion."""
    fw: Any = OURS.autograd.forward_ad
    for result, expected in (
        (lambda t: (t, None), [[3.0], None]),
        (lambda t: (None, t * 3), [None, [9.0]]),
    ):
        with fw.dual_level():
            pair = function(
                Function,
                forward=lambda ctx, x: (x * 2, x * 3),
                jvp=lambda ctx, t: result(t),  # noqa: B023
            )
            outs = pair.apply(fw.make_dual(OURS.tensor([1.0]), OURS.tensor([3.0])))
            tangents = [fw.unpack_dual(o).tangent for o in outs]
            assert [None if t is None else t.tolist() for t in tangents] == expected


def test_jvp_finds_what_was_saved_for_it_and_nothing_else() -> None:
    def scenario(lib: Any) -> Any:
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            ctx.save_for_forward(None, x * 3) if saves else None
            return x * x

        def jvp(ctx: Any, t: Any) -> Any:
            seen.append([s if s is None else s.detach() for s in ctx.saved_tensors])
            return t * 2

        found = []
        fw = lib.autograd.forward_ad
        for saves in (True, False):  # noqa: B007
            seen: list[Any] = []
            with fw.dual_level():
                d = fw.make_dual(lib.tensor([1.0, 2.0], requires_grad=True), lib.tensor([3.0, 4.0]))
                out = function(lib.autograd.Function, forward=forward, jvp=jvp).apply(d)
                found.append((seen, fw.unpack_dual(out).tangent))
        return found

    same(scenario)


@pytest.mark.parametrize("materialize", [True, False])
def test_jvp_is_given_zeros_or_none_where_an_input_has_no_tangent(materialize: bool) -> None:
    def scenario(lib: Any) -> Any:
        seen: list[Any] = []

        def forward(ctx: Any, x: Any, y: Any, k: Any, i: Any) -> Any:
            ctx.set_materialize_grads(materialize)
            return x * y

        def jvp(ctx: Any, t: Any, u: Any, k: Any, i: Any) -> Any:
            seen.append((t, u, k, i))
            return t * 1

        fw = lib.autograd.forward_ad
        with fw.dual_level():
            d = fw.make_dual(lib.tensor([1.0, 2.0]), lib.tensor([3.0, 4.0]))
            function(lib.autograd.Function, forward=forward, jvp=jvp).apply(
                d, lib.tensor([5.0, 6.0]), 3.0, lib.tensor([1, 2])
            )
        return [list(s) for s in seen]

    same(scenario)


@pytest.mark.parametrize(
    "forward",
    [
        lambda ctx, x: ctx.save_for_backward(x, 3) or x * 2,
        lambda ctx, x: ctx.save_for_backward(None) or x * 2,
        lambda ctx, x: (x, x),
        lambda ctx, x: [x * 2],
        lambda ctx, x: None,
        lambda ctx, x: (None, x * 2),
    ],
)
def test_what_forward_may_tell_and_return(forward: Any) -> None:
    def scenario(lib: Any) -> Any:
        out = function(
            lib.autograd.Function, forward=forward, backward=lambda ctx, *g: g[-1]
        ).apply(leaf(lib))
        each = out if isinstance(out, (tuple, list)) else (out,)
        return type(out) in (tuple, list), [
            isinstance(o, torch.Tensor) and o.requires_grad for o in each
        ]

    same(scenario)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("mark_dirty", "mark_dirty can only accept variables"),
        ("mark_non_differentiable", "mark_non_differentiable only accepts variable"),
    ],
)
def test_only_tensors_are_marked(method: str, message: str) -> None:
    for at, args in enumerate([(3,), (torch.ones(1), "a")]):
        with pytest.raises(RuntimeError, match=f"{message}.* {at} is of type (int|str)"):
            function(Function, forward=lambda ctx, x: getattr(ctx, method)(*args) or x * 2).apply(  # noqa: B023
                leaf()
            )


def test_what_forward_makes_is_what_the_caller_gets() -> None:
    made: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        made.append((x * 2, torch.full((2,), 3.0), x.detach().exp()))
        return made[-1]

    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        out = function(
            lib.autograd.Function, forward=forward, backward=lambda ctx, g, h, k: g * 2 + h * 3 + k
        ).apply(x)
        same_objects = [a is b for a, b in zip(out, made[-1], strict=True)]
        (g,) = lib.autograd.grad((out[0] + out[1] * 10 + out[2]).sum(), x)
        return (
            same_objects[0],
            same_objects[2],
            out,
            [o.requires_grad for o in out],
            [o.grad_fn is out[0].grad_fn for o in out],
            g,
        )

    same(scenario)


def test_a_function_with_keyword_only_parameters_is_refused_and_others_bind_by_name() -> None:
    class Scaled(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float = 3.0, shift: float = 0.0) -> Any:
            ctx.factor = factor
            return x * factor + shift

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.factor, None, None

    x = leaf()
    for out, slope in (
        (Scaled.apply(x), 3.0),
        (Scaled.apply(x, shift=1.0), 3.0),
        (Scaled.apply(factor=4.0, x=x), 4.0),
    ):
        assert (
            OURS.autograd.grad(out.sum(), x)[0].tolist() == [slope, slope]
            and out.grad_fn.needs_input_grad[0]
        )
    only = function(Function, forward=lambda ctx, x, *, factor=2.0: x * factor)
    with pytest.raises(
        TypeError,
        match=re.escape("forward has keyword-only parameters ['factor']; make them positional"),
    ):
        only.apply(x, factor=3.0)


def test_what_a_class_leaves_out_is_told_by_name() -> None:
    for method, args, message in (
        ("forward", (), "You must implement the forward function"),
        ("setup_context", (None, (), None), "setup_context is not implemented"),
        ("backward", (None,), "You must implement either the backward or vjp method"),
        ("vjp", (None,), "vjp is another name for backward"),
        ("jvp", (None,), "You must implement the jvp function"),
        ("vmap", (None, ()), "you must either override vmap or set generate_vmap_rule=True"),
    ):
        for base in (Function, InplaceFunction):
            with pytest.raises(NotImplementedError, match=message):
                getattr(base, method)(*args)
    for inplace in (False, True):
        with pytest.warns(DeprecationWarning, match="should not be instantiated"):
            assert InplaceFunction(inplace).inplace is inplace
    with pytest.warns(DeprecationWarning):
        assert InplaceFunction().inplace is False


def test_a_value_of_a_transform_that_has_returned_is_no_argument() -> None:
    escaped: list[Any] = []

    def f(x: Any) -> Any:
        escaped.append(x)
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))

    class Doubled(Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    with pytest.raises(
        EscapedValue, match=r"a value of grad.* is used by Doubled after the transform has returned"
    ):
        Doubled.apply(escaped[0])


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        (
            lambda a, b: torch.igamma(a, b),
            r"igamma.* has no vjp rule for its argument 'self' \(it has one for 'other'\)",
        ),
        (
            lambda a, b: torch.nn.functional.binary_cross_entropy(b.detach(), b.detach(), a),
            "has no vjp rule for its argument 'weight'",
        ),
    ],
)
def test_an_argument_without_a_derivative_is_named(call: Any, missing: str) -> None:
    a, b = leaf(), OURS.tensor([0.3, 0.4], requires_grad=True)
    out = call(a, b)
    with pytest.raises(MissingRule, match=missing):
        out.sum().backward()


def test_an_out_argument_beside_another_keyword_is_what_is_returned() -> None:
    def scenario(lib: Any) -> Any:
        sequence, out = lib.tensor([3.0, 1.0, 2.0]), lib.tensor([0, 0])
        sorter = lib.tensor([1, 2, 0])
        found = torch.ops.aten.searchsorted.Tensor_out(
            sequence, lib.tensor([1.5, 2.5]), sorter=sorter, out=out
        )
        return found is out, found, sorter, sorter._version, out._version

    assert same(scenario)[:2] == [True, [1, 2]]


# ---- names


def test_variables_are_tensors_by_their_old_name() -> None:
    Variable = OURS.autograd.Variable
    empty, data = Variable(), torch.tensor([1.0, 2.0])
    assert empty.shape == (0,) and isinstance(empty, runtime.Tensor) and not empty.requires_grad
    for requires_grad in (False, True):
        made = Variable(data, requires_grad)
        assert made.tolist() == [1.0, 2.0] and made.requires_grad is requires_grad and made.is_leaf
    assert (
        not Variable(data).requires_grad
        and isinstance(data, Variable)
        and not isinstance(3.0, Variable)
    )


@pytest.mark.parametrize("name", OURS.autograd.__all__)
def test_a_name_of_the_list_is_there(name: str) -> None:
    assert hasattr(OURS.autograd, name)


@pytest.mark.parametrize(
    "name", ["grad", "backward", "Function", "gradcheck", "forward_ad", "functional"]
)
def test_what_torch_offers_is_offered_by_name(name: str) -> None:
    assert name in OURS.autograd.__all__


def test_the_policy_of_layouts_is_offered_where_torch_has_it() -> None:
    name = "enforce_grad_layout_policy"
    assert (name in OURS.autograd.__all__) is hasattr(torch.autograd.grad_mode, name)


# ---- forward mode


def test_an_op_without_a_derivative_is_named_in_forward_mode_written_or_not() -> None:
    fw: Any = OURS.autograd.forward_ad
    library = torch.library.Library("runtime_tests", "FRAGMENT")
    library.define("misused(Tensor x) -> Tensor")
    library.define("misused_(Tensor(a!) x) -> Tensor(a!)")
    library.impl("misused", lambda x: x * 1, "CPU")
    library.impl("misused_", lambda x: x.mul_(1), "CPU")
    with fw.dual_level():
        d = fw.make_dual(OURS.tensor([1.0]), OURS.tensor([2.0]))
        for op in (torch.ops.runtime_tests.misused, torch.ops.runtime_tests.misused_):
            with pytest.raises(MissingRule, match=r"runtime_tests.*misused.*has no jvp"):
                op(d)
        plain: Callable[..., Any] = torch.ops.runtime_tests.misused
        assert plain(OURS.tensor([1.0])).tolist() == [1.0]


def test_a_dual_tensor_is_not_written_into_a_plain_one() -> None:
    fw: Any = OURS.autograd.forward_ad
    with fw.dual_level():
        d = fw.make_dual(OURS.tensor([1.0]), OURS.tensor([2.0]))
        with pytest.raises(
            runtime.errors.InplaceError,
            match="writes a value of the session that requires grad into a tensor",
        ):
            torch.zeros(1).add_(d)
