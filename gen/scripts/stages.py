"""Write transforms as text: what a target calls, and in its place a loop, the plain engine or
central differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gen.scripts.python_values import NoScript, arguments, value
from gen.scripts.tracer import Tracer, text_of

Tensor = torch.Tensor
Values = tuple[Any, ...]


class Written:
    """Write down what a target (:class:`gen.targets.protocol.Target`) is asked to do, with
    transforms named as in torch.func.
    """

    lacks: frozenset[str] = frozenset()

    def __init__(self, tracer: Tracer, name: str = "script") -> None:
        self.tracer, self.name = tracer, name
        self.used: set[str] = set()  # transforms and helpers that the text names

    def word(self, transform: str) -> str:
        """Return the name of `transform` in the text."""
        self.used.add(transform)
        return transform

    def forward(self, f: Callable[..., Values]) -> Callable[..., Values]:
        return f

    def vjp(self, f: Callable[..., Values], *primals: object) -> Any:
        return self._reverse("vjp", f, primals)

    def backward(self, f: Callable[..., Values], *primals: object) -> Any:
        return self._reverse("engine_vjp", f, primals)

    def _reverse(self, transform: str, f: Callable[..., Values], primals: Values) -> object:
        """Write the call of a reverse-mode transform. Its pullback writes the call of the
        pullback.
        """
        name, outputs = self.tracer.function(f, primals)
        arguments_text = ", ".join([name, *map(text_of, primals)])
        pair = self.tracer.assign(f"{self.word(transform)}({arguments_text})", "r")
        shown = self._outputs(f"{pair}[0]", outputs)

        def pullback(cotangents: Sequence[object]) -> Values:
            if len(outputs) == 1:
                arguments_text = text_of(cotangents[0])
            else:
                arguments_text = arguments(list(map(text_of, cotangents)))
            gradients: Values = self.tracer.results(f"{pair}[1]({arguments_text})", tuple(primals))
            return gradients

        return shown, pullback

    def _outputs(self, text: str, outputs: Values) -> Values:
        """Return the outputs under the names that they have in the program: `r[0]`, `r[1]`."""
        if len(outputs) == 1:
            return (self.tracer.named(text, outputs[0]),)
        return tuple(self.tracer.named(f"{text}[{index}]", y) for index, y in enumerate(outputs))

    def jvp(self, f: Callable[..., Values], primals: Values, tangents: Values) -> Any:
        return self._forward_mode("jvp", f, primals, tangents)

    def dual(self, f: Callable[..., Values], primals: Values, tangents: Values) -> Any:
        return self._forward_mode("dual_jvp", f, primals, tangents)

    def _forward_mode(
        self, transform: str, f: Callable[..., Values], primals: Values, tangents: Values
    ) -> object:
        """Write the call of a forward-mode transform. It returns outputs and tangents."""
        name, outputs = self.tracer.function(f, primals)
        argument_texts = [arguments(list(map(text_of, xs))) for xs in (primals, tangents)]
        arguments_text = ", ".join([name, *argument_texts])
        pair = self.tracer.assign(f"{self.word(transform)}({arguments_text})", "r")
        return self._outputs(f"{pair}[0]", outputs), self._outputs(f"{pair}[1]", outputs)

    def linearize(self, f: Callable[..., Values], *primals: Any) -> Any:
        """Write the call of linearize, and each call of its pushforward."""
        name, outputs = self.tracer.function(f, primals)
        arguments_text = ", ".join([name, *map(text_of, primals)])
        pair = self.tracer.assign(f"{self.word('linearize')}({arguments_text})", "r")

        def push(tangents: Sequence[object]) -> Values:
            call = f"{pair}[1]({', '.join(map(text_of, tangents))})"
            # tangents have the shapes and dtypes of the outputs, whose values stand for them here
            return self._outputs(self.tracer.assign(call), outputs)

        return self._outputs(f"{pair}[0]", outputs), push

    def vmap(
        self, f: Callable[..., Values], in_dims: tuple[int | None, ...]
    ) -> Callable[..., Values]:
        """Write the call of vmap. Its function is traced on the first entries."""

        def g(*args: Any) -> Values:
            pairs = list(zip(args, in_dims, strict=True))
            first = [_first_entry(argument, dim) for argument, dim in pairs]
            size = next(argument.shape[dim] for argument, dim in pairs if dim is not None)
            name, outputs = self.tracer.function(f, first)
            arguments_text = ", ".join(map(text_of, args))
            call = f"{self.word('vmap')}({name}, in_dims={value(in_dims)})({arguments_text})"
            # Any values do: only shapes and dtypes of the batch matter to what follows.
            batch = tuple(_plain(y).expand(size, *y.shape) for y in outputs)
            return self._outputs(self.tracer.assign(call), batch)

        return g

    def grad(self, f: Callable[..., object]) -> Callable[..., Values]:
        """Write the call of grad, whose function returns a number."""

        def g(*args: Any) -> Values:
            name, _ = self.tracer.function(f, args, scalar=True)
            argnums = value(tuple(range(len(args))))
            arguments_text = ", ".join(map(text_of, args))
            call = f"{self.word('grad')}({name}, argnums={argnums})({arguments_text})"
            gradients: Values = self.tracer.results(call, tuple(args))
            return gradients

        return g

    def _jacobian(
        self, transform: str, f: Callable[..., Values], argnums: tuple[int, ...]
    ) -> Callable[..., object]:
        """Write the call of a transform that returns blocks by output and argument."""

        def g(*args: Any) -> Any:
            name, outputs = self.tracer.function(f, args)
            if transform == "hessian" and self.name == "loop" and len(outputs) > 1:
                raise NoScript("the Hessian of several results has no text in plain calls")
            arguments_text = ", ".join(map(text_of, args))
            call = f"{self.word(transform)}({name}, argnums={value(argnums)})({arguments_text})"
            result = self.tracer.assign(call)
            texts = [result]
            if len(outputs) > 1:
                texts = [f"{result}[{index}]" for index in range(len(outputs))]
            shapes = [args[place].shape for place in argnums]
            orders = 2 if transform == "hessian" else 1
            return tuple(
                self._blocks(text, y, y.shape, shapes, orders)
                for text, y in zip(texts, outputs, strict=True)
            )

        return g

    def _blocks(
        self,
        text: str,
        output: object,
        shape: torch.Size,
        inputs: Sequence[torch.Size],
        orders: int,
    ) -> object:
        """Return what stands for the derivatives of one output.

        It is a tuple by argument, in which each is again such a tuple for a further order.
        """
        if orders == 0:
            return self.tracer.named(text, _plain(output).new_zeros(shape))
        return tuple(
            self._blocks(f"{text}[{index}]", output, shape + by, inputs, orders - 1)
            for index, by in enumerate(inputs)
        )

    def jacrev(self, f: Callable[..., Values], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return self._jacobian("jacrev", f, argnums)

    def jacfwd(self, f: Callable[..., Values], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return self._jacobian("jacfwd", f, argnums)

    def hessian(self, f: Callable[..., Values], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return self._jacobian("hessian", f, argnums)

    def _around(
        self, make: Callable[[str, Sequence[Any]], str], f: Callable[..., Values]
    ) -> Callable[..., Values]:
        """Return a transform whose result is called as `f` is.

        `make`: its text, from that of `f` and the arguments.
        """

        def g(*args: Any) -> Values:
            name, outputs = self.tracer.function(f, args)
            call = f"{make(name, args)}({', '.join(map(text_of, args))})"
            return self._outputs(self.tracer.assign(call, pure=False), outputs)

        return g

    def functionalize(self, f: Callable[..., Values]) -> Callable[..., Values]:
        return self._around(lambda name, _: f"{self.word('functionalize')}({name})", f)

    def trace(
        self, f: Callable[..., Values], args: Sequence[object], *, dynamic: bool
    ) -> Callable[..., Values]:
        """Write the call of make_fx."""
        mode = "symbolic" if dynamic else "real"
        examples = ", ".join(map(text_of, args))
        run = self._around(
            lambda name, _: f'{self.word("make_fx")}({name}, tracing_mode="{mode}")({examples})', f
        )
        run.graph = True  # type: ignore[attr-defined]  # a harness asks whether there is one
        return run

    def compiled(
        self, f: Callable[..., Values], *, partition: str, dynamic: bool
    ) -> Callable[..., Values]:
        """Write the call of aot_function."""
        cut = {"default": "default_partition", "min_cut": "min_cut_rematerialization_partition"}[
            partition
        ]
        self.used |= {"aot_function", cut, "nop"}
        return self._around(
            lambda name, _: (
                f"aot_function({name}, nop, nop, partition_fn={cut}, dynamic={dynamic})"
            ),
            f,
        )

    def __getattr__(self, name: str) -> Any:
        # Python asks here for what the class lacks alone.
        if name in _WITHOUT_TEXT:
            raise NoScript(f"the stage {name} has no text")
        raise AttributeError(name)


_WITHOUT_TEXT = (
    "joint",
    "export",
    "saved",
    "per_sample",
    "per_sample_answer",
    "jit",
    "part",
    "session",
    "training",
)


_BY_DIFFERENCES = {
    "jvp": "jvp_by_differences",
    "vjp": "vjp_by_differences",
    "engine_vjp": "vjp_by_differences",
}


class Plain(Written):
    """Write the same program without transforms: vmap as a loop, derivatives by the plain engine,
    the outermost one by differences if asked.
    """

    def __init__(self, tracer: Tracer, differences: bool) -> None:
        super().__init__(tracer, "loop")
        self.differences = differences

    def word(self, transform: str) -> str:
        """Return the name of the helper that stands for `transform`."""
        # without transforms both orders are one: a Jacobian row by row
        if transform in ("jacrev", "jacfwd"):
            transform = "jacobian"
        helper = f"engine_{transform.removeprefix('engine_')}"
        # Differences of differences would have few digits left.
        outermost = len(self.tracer.scopes) == 1
        if self.differences and outermost:
            helper = _BY_DIFFERENCES.get(transform, helper)
        if transform == "vmap":
            helper = "one_by_one"
        self.used.add(helper)
        return helper

    def dual(self, f: Callable[..., Values], primals: Values, tangents: Values) -> Any:
        return self.jvp(f, primals, tangents)

    def linearize(self, f: Callable[..., Values], *primals: object) -> Any:
        return f(*primals), lambda tangents: self.jvp(f, primals, tangents)[1]

    def functionalize(self, f: Callable[..., Values]) -> Callable[..., Values]:
        return f

    def trace(
        self, f: Callable[..., Values], args: Sequence[object], *, dynamic: bool
    ) -> Callable[..., Values]:
        return f

    def compiled(
        self, f: Callable[..., Values], *, partition: str, dynamic: bool
    ) -> Callable[..., Values]:
        return f


def _first_entry(x: Tensor, dim: int | None) -> Tensor:
    """Return the first entry of a batch, or all of an argument that has none."""
    if dim is None:
        whole: Tensor = x.as_subclass(Tensor)
        return whole
    return _plain(x).select(dim, 0)


def _plain(value: Any) -> Tensor:
    """Return a value of the tracer as a tensor of torch, whose ops nobody writes down."""
    tensor: Tensor = value.detach().as_subclass(Tensor)
    return tensor


HELPERS = {
    "dual_jvp": """
def dual_jvp(f, xs, tangents):
    with torch.autograd.forward_ad.dual_level():
        y = f(*map(torch.autograd.forward_ad.make_dual, xs, tangents))
        ys = y if isinstance(y, tuple) else (y,)
        pairs = [torch.autograd.forward_ad.unpack_dual(o) for o in ys]
        found = [(p, torch.zeros_like(p) if t is None else t) for p, t in pairs]
    return tuple(zip(*found)) if isinstance(y, tuple) else found[0]
""",
    "one_by_one": """
def one_by_one(f, in_dims):  # what vmap means: f of each entry, stacked
    def g(*xs):
        size = next(x.shape[d] for x, d in zip(xs, in_dims) if d is not None)
        rows = [f(*(x if d is None else x.select(d, b) for x, d in zip(xs, \
in_dims))) for b in range(size)]
        return torch.stack(rows) if isinstance(rows[0], torch.Tensor) else tuple(map(torch.stack, \
zip(*rows)))
    return g
""",
    "engine_vjp": """
def engine_vjp(f, *xs):  # torch's plain engine
    xs = [x.detach().requires_grad_() if not x.requires_grad else x for x in xs]
    y = f(*xs)
    return y, lambda c: torch.autograd.grad(y, xs, c, create_graph=True, materialize_grads=True)
""",
    "engine_jvp": """
def engine_jvp(f, xs, tangents):  # torch's plain engine, twice: the pullback is linear in its \
cotangents
    xs = [x.detach().requires_grad_() if not x.requires_grad else x for x in xs]
    y = f(*xs)
    ys = y if isinstance(y, tuple) else (y,)
    probes = [torch.ones_like(o, requires_grad=True) for o in ys]
    gs = torch.autograd.grad(ys, xs, probes, create_graph=True, materialize_grads=True)
    ts = torch.autograd.grad(gs, probes, tangents, create_graph=True, materialize_grads=True)
    return y, ts if isinstance(y, tuple) else ts[0]
""",
    "engine_grad": """
def engine_grad(f, argnums):  # torch's plain engine
    def g(*xs):
        xs = [x.detach().requires_grad_() if not x.requires_grad else x for x in xs]
        return torch.autograd.grad(f(*xs), xs, create_graph=True, materialize_grads=True)
    return g
""",
    "engine_jacobian": """
def engine_jacobian(f, argnums):  # torch's plain engine, row by row
    return lambda *xs: torch.autograd.functional.jacobian(f, xs, create_graph=True)
""",
    "engine_hessian": """
def engine_hessian(f, argnums):  # torch's plain engine, row by row, twice
    once = lambda *xs: torch.autograd.functional.jacobian(f, xs, create_graph=True)
    return lambda *xs: torch.autograd.functional.jacobian(once, xs, create_graph=True)
""",
    "jvp_by_differences": """
def jvp_by_differences(f, xs, tangents, h=1e-6):  # (f(x + hv) - f(x - hv)) / 2h
    up, down = (f(*(x + s * h * t for x, t in zip(xs, tangents))) for s in (1, -1))
    return f(*xs), tuple((u - d) / (2 * h) for u, d in zip(up, down)) if isinstance(up, \
tuple) else (up - down) / (2 * h)
""",
    "vjp_by_differences": """
def vjp_by_differences(f, *xs, h=1e-6):  # real: <c, (f(x + he) - f(x - he)) / 2h> for each \
element e
    def slope(k, e, c):
        up, down = (f(*(x + s * h * e if k == j else x for j, x in enumerate(xs))) for s in (1, -1))
        pairs = zip(up, down, c) if isinstance(up, tuple) else [(up, down, c)]
        return sum((w * (u - d)).sum() for u, d, w in pairs) / (2 * h)
    def unit(x, i):
        return torch.zeros(x.numel(), dtype=x.dtype).index_fill(0, torch.tensor(i), \
1).reshape(x.shape)
    def pull(c):
        return tuple(torch.stack([slope(k, unit(x, i), \
c) for i in range(x.numel())]).reshape(x.shape) for k, x in enumerate(xs))
    return f(*xs), pull
""",
}
"""What the plain text may call, by name."""
