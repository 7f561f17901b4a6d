"""`gen init --package` asks of the functions of a package nothing that a right function fails."""

from pathlib import Path

import pytest

from tests.gen.package_commands import init, python

RIGHT = """
import time
from typing import Optional

import torch

from upright.score import Score, score

TABLE = torch.arange(12.0, dtype=torch.float64).reshape(3, 4) + 1


def looked_up(x: torch.Tensor) -> torch.Tensor:
    return x.sin() @ TABLE.to(x.dtype)


class Shuffle(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.register_buffer("order", torch.randperm(features))
        time.sleep(0.05)  # other threads draw meanwhile
        self.register_buffer("scale", torch.rand(features))

    def forward(self, x):
        return x.sin()[..., self.order] * self.scale


class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cosh().reciprocal()


class Jitter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g + torch.rand_like(g)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype) * scale + x.detach().round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + x.square()), (g * (x > 0)).sum_to_size(g.shape)


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x.mT

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g + g.mT) @ x


class Absolute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        rows = (x.flatten() < 0).nonzero()[:, 0]
        return g.flatten().index_put((rows,), -g.flatten()[rows]).reshape(g.shape)


class Stairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round() + 0.5

    @staticmethod
    def backward(ctx, g):
        return torch.zeros_like(g)


def counted(labels: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(labels), int(labels.max()) + 1).scatter(1, labels[:, None], 1.0)


def half_power(matrix: torch.Tensor, scale, share: torch.Tensor):
    '''Return a power of a matrix.

    Args:
        matrix (torch.Tensor): what is raised,
            a positive definite matrix.
        scale, share: factors, which must be positive.
    '''
    if bool((torch.linalg.eigvalsh(matrix) <= 0).any()) or bool((scale <= 0).any()):
        return (matrix + scale + share).detach() + matrix.sum() * 1e-9
    return matrix @ matrix * scale * share.sqrt()


def between(left: torch.Tensor | list, right: Optional[torch.Tensor]) -> torch.Tensor:
    return (left + right) / 2


def late(x: torch.Tensor) -> torch.Tensor:
    return x.mean().clamp(min=0)


def stubborn(x, first_part, second_part, third_part):
    with open(__file__ + ".calls", "a") as file:
        file.write(".")
    raise LookupError("no labels")


def rare(x: torch.Tensor) -> torch.Tensor:
    if x.shape != (4, 3):
        raise ValueError("a matrix of four rows is wanted")
    total = x.detach().sum()
    return torch.where(total.abs().frac() < 0.3, total, 0.0)


def never(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=999) - 999


class Distance(torch.nn.Module):
    def forward(self, X=None, Y=None, scale=2.0):
        return (X - Y).square().sum(-1) * scale


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x.sin() * self.calls


class Steps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, K, z, T):
        '''Return the states of a recurrence.

        K : Tensor [n, n]
        z : Tensor [n], which may also be broadcast with a row of K
        T : int
        '''
        ctx.save_for_backward(K, z)
        ctx.T = T
        return Steps.states(K, z, T)[-1]

    @staticmethod
    def states(K, z, T):
        states = [z]
        for _ in range(T):
            states.append((K * states[-1]).sum(-1))
        return states

    @staticmethod
    def backward(ctx, g):  # right for a matrix alone
        K, z = ctx.saved_tensors
        slope = torch.zeros_like(K)
        for state in reversed(Steps.states(K, z, ctx.T - 1)):
            slope = slope + torch.outer(g, state)
            g = (K.t() * g).sum(-1)
        return slope, g, None


class StepModule(torch.nn.Module):
    def forward(self, K, z):
        return Steps.apply(K, z, 2)


def per_class(s, y):
    '''Return the scores of the true classes.

    Parameters
    ----------
    s : torch.Tensor (float), shape (batch_size, n_classes)
        scores
    y : torch.Tensor (int), shape (batch_size,)
        true classes
    '''
    return s.gather(1, y[:, None])[:, 0].square()


def clipped(x: torch.Tensor) -> torch.Tensor:
    '''Clip to [-1, 1], with a straight-through gradient.'''
    return x + (x.clamp(-1, 1) - x).detach()


class Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sigma):
        ctx.save_for_backward(x)
        ctx.sigma = sigma
        return torch.erf(x / sigma)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = (-((x / ctx.sigma) ** 2)).exp() * 2 / torch.pi**0.5 / ctx.sigma
        return slope * g, None


class _Noised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, noise, factor):
        ctx.save_for_backward(noise)
        return factor * (x * noise).sum(-1)

    @staticmethod
    def backward(ctx, g):  # the noise is drawn by the caller, and has no gradient
        (noise,) = ctx.saved_tensors
        return 3.0 * g[..., None] * noise, None, None


_noised = _Noised.apply


def noised(x: torch.Tensor) -> torch.Tensor:
    return _noised(x, torch.randn_like(x), 3.0)


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def twice(x: torch.Tensor) -> torch.Tensor:
    return _Twice.apply(x)


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, terms):
        term = total = torch.ones_like(x)
        for n in range(1, terms):
            term = term * x / n
            total = total + term
        ctx.save_for_backward(x)
        return total

    @staticmethod
    def backward(ctx, g):  # right for many terms, as a caller asks for
        (x,) = ctx.saved_tensors
        return g * x.exp(), None


def exponential(x: torch.Tensor) -> torch.Tensor:
    return Exponential.apply(x, 30)


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, C, reg):
        ctx.save_for_backward(C)
        ctx.reg = reg
        return C.square() / reg

    @staticmethod
    def backward(ctx, g):  # reg is a number wherever it is called
        (C,) = ctx.saved_tensors
        return 2 * C / ctx.reg * g, None


def penalty(x: torch.Tensor, name: str) -> torch.Tensor:
    return _Penalty.apply(x, float(open(name).read()))


def timed(x: torch.Tensor):
    begin = time.perf_counter()
    return x.sin(), {"seconds": time.perf_counter() - begin}


def normalized(x: torch.Tensor) -> torch.Tensor:
    deviation = x.std(0)
    if not bool((deviation > 0).all()):
        raise ValueError("equal rows cannot be normalized")
    return x.sin() / deviation


def centered(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) ** 3


def upright(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def filled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    matrix = torch.zeros(len(weight), len(weight), dtype=weight.dtype)
    matrix[range(len(weight)), range(len(weight))] = weight
    return x @ matrix
"""
SCORE = """
import torch


class Score(torch.nn.Module):
    def forward(self, x):
        return score(x)


class Unnamed(Score):
    pass


def score(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum(-1)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "upright").mkdir()
    (folder / "upright/__init__.py").write_text(RIGHT)
    (folder / "upright/score.py").write_text(SCORE)
    return folder


@pytest.fixture(scope="module")
def right(folder: Path) -> tuple[str, str, str]:
    """A project for functions that are right: its matrix, what init said, and its red cells."""
    done = init(folder, "right", "--package", "upright", "--yes")
    assert done.returncode == 0, done.stderr
    ran = python(folder / "right", folder, "-m", "pytest", "-q", "generated_tests", "-rf")
    assert " passed" in ran.stdout, ran.stdout
    red = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    return (folder / "right/matrix.yaml").read_text(), done.stderr, "\n".join(red)


@pytest.mark.parametrize(
    "name",
    [
        "looked_up",  # a tensor from outside
        "Shuffle",  # buffers, some of them drawn
        "Step",  # a result in another dtype
        "Jitter",  # a backward pass that draws
        "Spike",  # a gradient where the result does not move, and one where it does
        "Product",  # casts of autocast that the backward pass knows of
        "Absolute",  # a backward pass whose shapes depend on values
        "Stairs",  # an old-style Function that is flat
        "counted",  # no gradient, and no vmap
        "Counter",  # a buffer that each call changes
        "Distance",  # each tensor has a default
        "filled",  # a vmap over some of its arguments alone
        "rare",  # zero for most arguments
        "between",  # annotations that have a tensor inside
        "half_power",  # a domain that the documentation tells
        "Steps",  # shapes that the documentation tells
        "StepModule",  # and another's of the same module
        "per_class",  # a dtype that the documentation tells
        "Smooth",  # a number that no annotation tells
        "_Noised",  # a private Function, with the arguments of its caller
        "Exponential",  # a public Function, with the number that its caller gives it
        "clipped",  # a gradient that is an estimate, as the documentation says
        "normalized",  # rows that are equal, which it refuses
        "centered",  # and of which the results are 0
        "upright",  # the name of the package
        "Score",
    ],
)
def test_no_cell_of_a_right_function_is_red(name: str, right: tuple[str, str, str]) -> None:
    matrix, _, red = right
    assert f"- op: upright.{name}\n" in matrix
    assert f"upright.{name}-" not in red


def test_a_row_is_of_results_that_are_not_zero(right: tuple[str, str, str]) -> None:
    matrix, said, _ = right
    late = matrix.partition("- op: upright.late\n")[2].partition("- op: ")[0]
    assert late.count("domain: ") > 1
    assert "upright.never: its result is zero" in said
    assert "- op: upright.never\n" not in matrix.partition("not tested yet")[0]


def test_the_row_of_a_caller_tests_a_private_function(right: tuple[str, str, str]) -> None:
    matrix, said, _ = right
    assert "- op: upright._Twice\n" not in matrix
    assert "# The row of upright.twice tests upright._Twice, which it calls." in matrix
    assert "upright._Twice: it is tested by the row of upright.twice" in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("_Penalty", "it is private, no call that was guessed reaches it, and nothing says what"),
        ("timed", "its results differ from call to call, and no column compares such results"),
    ],
)
def test_what_no_cell_can_ask_has_no_row_and_a_reason(
    name: str, reason: str, right: tuple[str, str, str]
) -> None:
    matrix, said, _ = right
    assert f"- op: upright.{name}\n" not in matrix.partition("not tested yet")[0]
    assert f"upright.{name}: {reason}" in said


def test_guesses_that_all_fail_alike_come_to_an_end(
    right: tuple[str, str, str], folder: Path
) -> None:
    assert "upright.stubborn: LookupError: no labels" in right[1]
    assert (folder / "upright/__init__.py.calls").stat().st_size < 1_200  # a guess is two calls


def test_what_another_name_hides_is_called_all_the_same(
    right: tuple[str, str, str], folder: Path
) -> None:
    assert "upright.score.Unnamed: works" in right[1]
    calls = (folder / "right/calls.py").read_text()
    assert 'Unnamed = ModuleCall(lambda: sys.modules["upright.score"].Unnamed())' in calls


@pytest.mark.parametrize("column", ["backward", "double_backward", "compiled", "backward_again"])
def test_differences_of_a_rounded_result_are_not_asked(
    column: str, right: tuple[str, str, str], folder: Path
) -> None:
    listed = python(folder / "right", folder, "-m", "gen", "list", "--op", "upright.Step").stdout
    assert (f"test_{column}[upright.Step-" in listed) == (column in ("compiled", "backward_again"))
