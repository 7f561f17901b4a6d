"""A call of a compiled program sets the states of random generators that the program sets, or the
program is refused."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime.aot import aot_function, export, nop
from runtime.checkpoint import checkpoint
from runtime.func import vmap

from ..watched_generators import HAVE_NATIVE, Generator

GENERATOR = Generator()


def seeds(x: Any) -> Any:
    torch.manual_seed(3)
    return x * 2


def seeds_after_a_draw(x: Any) -> Any:
    y = x + torch.rand(2)
    torch.manual_seed(3)
    return y + torch.rand(2)


def seeds_a_generator(x: Any) -> Any:
    GENERATOR.manual_seed(3)
    return x * torch.rand(2, generator=GENERATOR)


def seeds_a_generator_after_a_draw(x: Any) -> Any:
    y = x * torch.rand(2, generator=GENERATOR)
    GENERATOR.manual_seed(3)
    return y


def forks(x: Any) -> Any:
    with torch.random.fork_rng(devices=()):
        y = torch.rand(2)
    return x * y


def forks_and_seeds(x: Any) -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(7)
        y = torch.rand(2) + torch.rand(2)
    return torch.nn.functional.dropout(x, 0.0) * y


def seeds_before_and_after(x: Any) -> Any:
    torch.manual_seed(3)
    y = x * torch.rand(2)
    torch.manual_seed(4)
    return y


def seeds_again(x: Any) -> Any:
    with torch.random.fork_rng(devices=()):
        y = torch.rand(2)
    return x + y + torch.rand(2)


def seeds_at_random(x: Any) -> Any:
    torch.seed()
    return x + torch.rand(2)


ASKED = r"calls torch\.Generator\.initial_seed"
"""What a program is told that asks for a seed, which is another one in a capture."""


def seeds_by_the_seed(x: Any) -> Any:
    torch.manual_seed(torch.initial_seed() + 1)
    return x + torch.rand(2)


def seeds_below_the_bound(x: Any) -> Any:
    torch.manual_seed((1 << 40) - 1)
    return x + torch.rand(2)


def seeds_at_the_bound(x: Any) -> Any:
    torch.manual_seed(1 << 40)
    return x + torch.rand(2)


def makes_a_generator(x: Any) -> Any:
    g = Generator().manual_seed(5)
    return x + torch.rand(2, generator=g) * torch.rand(2, generator=g)


def makes_one_of_the_default_seed(x: Any) -> Any:
    held = [Generator()]
    return x + torch.rand(2, generator=held[0])


def makes_two(x: Any) -> Any:
    g, others = Generator().manual_seed(5), {"a": Generator().manual_seed(6)}
    return (
        x
        + torch.rand(2, generator=g) * torch.rand(2, generator=others["a"])
        - torch.rand(2, generator=g)
    )


def draws_from_one_that_is_given_by_position(x: Any) -> Any:
    g = Generator().manual_seed(5)
    y = torch.poisson(x + 5, generator=GENERATOR) + torch.rand(2) * torch.rand(
        2, generator=GENERATOR
    )
    return torch.rrelu(torch.poisson(y, generator=g) - 9, training=True, generator=g)


def draws_from_one_in_a_cycle(x: Any) -> Any:
    held: list[Any] = [Generator().manual_seed(5)]
    held.append(held)
    return x + torch.rand(2, generator=held[0])


def draws_of_its_size(x: Any) -> Any:
    y = torch.rand(x.shape, generator=GENERATOR) - torch.randn(
        x.shape[0], generator=GENERATOR, dtype=torch.float64
    )
    y = y * torch.randint(5, x.shape, generator=GENERATOR) + torch.randint(
        2, 5, x.shape, generator=GENERATOR, dtype=torch.int32
    )
    x = x.clone().exponential_(generator=GENERATOR) + x.clone().cauchy_(generator=GENERATOR)
    return y + x.log_normal_(generator=GENERATOR) + x.clone().geometric_(0.5, generator=GENERATOR)


def drops_all(x: Any) -> Any:
    return torch.nn.functional.dropout(x, 1.0) + torch.rand(2)


def drops_all_in_inference_mode(x: Any) -> Any:
    with torch.inference_mode():
        return drops_all(x)


class Place:
    def __init__(self) -> None:
        self.generator = GENERATOR


PLACE = Place()


def seeds_what_an_object_holds(x: Any) -> Any:
    PLACE.generator.manual_seed(3)
    return x * torch.rand(2, generator=PLACE.generator)


def seeds_what_an_object_holds_and_does_not_draw(x: Any) -> Any:
    PLACE.generator.manual_seed(3)
    return x * 2


def seeds_a_default(x: Any, generator: torch.Generator = GENERATOR) -> Any:
    generator.manual_seed(3)
    return x * torch.rand(2, generator=generator)


def in_a_helper(x: Any) -> Any:
    return seeds_a_generator(x) + 1


def restores_a_later_state(x: Any) -> Any:
    y = x + torch.rand(2)
    state = torch.get_rng_state()
    y = y + torch.rand(2)
    torch.set_rng_state(state)
    return y


SERVED = [
    *(
        seeds,
        seeds_a_generator,
        seeds_a_generator_after_a_draw,
        forks,
        forks_and_seeds,
        seeds_before_and_after,
        seeds_below_the_bound,
    ),
    *(
        makes_a_generator,
        makes_one_of_the_default_seed,
        makes_two,
        draws_from_one_that_is_given_by_position,
    ),
    *(draws_of_its_size, drops_all, drops_all_in_inference_mode),
    *(
        draws_from_one_in_a_cycle,
        seeds_what_an_object_holds,
        seeds_what_an_object_holds_and_does_not_draw,
        seeds_a_default,
        in_a_helper,
    ),
]
REFUSED = [
    seeds_after_a_draw,
    seeds_again,
    seeds_at_random,
    seeds_by_the_seed,
    restores_a_later_state,
    seeds_at_the_bound,
]


@pytest.mark.skipif(HAVE_NATIVE, reason="torch's own generators take weak references")
def test_a_generator_without_weak_references_is_refused_with_the_line() -> None:
    def program(x: Any) -> Any:
        own = torch.Generator().manual_seed(3)
        return x + torch.rand(2, generator=own)

    with pytest.raises(RuntimeError, match=r"the installed torch has none.*generator=own"):
        aot_function(program, nop)(torch.ones(2))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", SERVED, ids=lambda f: f.__name__)
def test_every_call_sets_the_states_that_the_program_sets(program: Any, dynamic: bool) -> None:
    seen: list[list[tuple[Any, ...]]] = []
    for f in (program, aot_function(program, nop, dynamic=dynamic)):
        torch.manual_seed(1)
        GENERATOR.manual_seed(2)
        seen.append(
            [
                (f(torch.ones(2)), torch.rand(2), torch.rand(2, generator=GENERATOR))
                for _ in range(3)
            ]
        )
    for expected, found in zip(*seen, strict=True):
        assert all(map(torch.equal, expected, found))


def test_a_program_for_any_sizes_draws_from_a_generator() -> None:
    seen = []
    for f in (draws_of_its_size, jitted := runtime.jit(draws_of_its_size, dynamic=True)):
        GENERATOR.manual_seed(2)
        seen.append([f(torch.ones(n)) for n in (2, 3, 5, 4)])
    assert all(map(torch.equal, *seen)) and "1 program" in str(runtime.jit.explain(jitted))


def test_a_forward_with_a_seed_has_its_gradient() -> None:
    x = runtime.tensor([1.0, 1.0], requires_grad=True)
    aot_function(forks_and_seeds, nop)(x).sum().backward()
    assert runtime.unwrap(x.grad).equal(forks_and_seeds(torch.ones(2)))


def test_the_state_is_given_back_if_the_graph_fails() -> None:
    def compiler(module: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            torch.rand(1)
            raise ValueError("broken")

        return run

    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="broken"):
        aot_function(forks, compiler)(torch.ones(2))
    assert torch.get_rng_state().equal(state)


def test_an_exported_graph_with_a_seed_is_refused_by_the_line_that_draws() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"(?s)sets the state of a random generator, and an exported graph cannot.*"
        r"It happened at .*test_random_states\.py:\d+: .*rand",
    ):
        export(forks_and_seeds, (torch.ones(2),))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", REFUSED, ids=lambda f: f.__name__)
def test_what_depends_on_the_state_of_the_trace_is_refused_every_time(
    program: Any, dynamic: bool
) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf"sets the state of a random generator|{ASKED}"):
            aot_function(program, nop, dynamic=dynamic)(torch.ones(2))


def test_the_message_has_the_line_of_the_next_draw() -> None:
    with pytest.raises(RuntimeError, match=r"return y \+ torch.rand"):
        aot_function(seeds_after_a_draw, nop)(torch.ones(2))


def draws(x: Any) -> Any:
    y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False)
    return vmap(lambda t: t + torch.rand(()), randomness="different")(y) + torch.rand(
        2, generator=GENERATOR
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_draws_are_those_of_the_program_and_leave_the_states_that_it_leaves(dynamic: bool) -> None:
    seen = []
    for f in (draws, aot_function(draws, nop, dynamic=dynamic)):
        for _ in range(2):
            torch.manual_seed(1)
            GENERATOR.manual_seed(2)
            seen.append((f(torch.ones(2)), torch.get_rng_state(), GENERATOR.get_state()))
    for a, b in zip(seen[:2], seen[2:], strict=True):
        assert all(map(torch.equal, a, b))


def test_integers_between_two_bounds_are_drawn_as_without_the_compiler() -> None:
    for low, high in ((3, 9), (0, 4), (-5, 5)):
        drawn = []
        for run in (torch.Tensor.random_, aot_function(torch.Tensor.random_, nop)):
            torch.manual_seed(0)
            drawn.append(run(torch.ones(2, 3).t(), low, high))
        assert torch.equal(*drawn)


def test_an_op_of_another_library_may_draw() -> None:
    @torch.library.custom_op("random_states_tests::noisy", mutates_args=())
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)

    noisy.register_fake(torch.empty_like)
    x = torch.ones(3)
    for dynamic in (False, True):
        compiled = aot_function(lambda x: noisy(x) * torch.rand(3), nop, dynamic=dynamic)
        torch.manual_seed(0)
        found = compiled(x)
        torch.manual_seed(0)
        assert torch.equal(found, noisy(x) * torch.rand(3))
    with torch.random.fork_rng():
        expected = (torch.manual_seed(3), noisy(x))[1]
    assert aot_function(lambda x: (torch.manual_seed(3), noisy(x))[1], nop)(x).equal(expected)


class Holder:
    generator = Generator()


def test_the_first_call_draws_as_the_program_from_a_generator_that_is_first_met_at_a_draw() -> None:
    compiled = aot_function(lambda x: x * torch.rand(2, generator=Holder.generator), nop)
    Holder.generator.manual_seed(3)
    found = [compiled(torch.ones(2)) for _ in range(2)]
    Holder.generator.manual_seed(3)
    assert all(torch.equal(x, torch.rand(2, generator=Holder.generator)) for x in found)


class Noise(nn.Module):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator


HELD: dict[str, tuple[Callable[[torch.Generator], Any], Callable[[Any], torch.Generator]]] = {
    "list": (lambda g: [g], lambda held: held[0]),
    "dictionary": (lambda g: {"a": g}, lambda held: held["a"]),
    "module": (Noise, lambda held: held.generator),
}


@pytest.mark.parametrize("kind", HELD)
def test_a_generator_of_the_caller_goes_on_though_it_was_just_seeded(kind: str) -> None:
    hold, of = HELD[kind]
    holder, same = hold(Generator().manual_seed(3)), Generator().manual_seed(3)
    compiled = aot_function(lambda x: x + torch.rand(2, generator=of(holder)), nop)
    assert all(
        torch.equal(compiled(torch.zeros(2)), torch.rand(2, generator=same)) for _ in range(3)
    )


def test_a_generator_that_is_passed_and_not_kept_is_that_of_its_call() -> None:
    compiled = aot_function(lambda x, g: x + torch.rand(2, generator=g), nop)
    found = [compiled(torch.zeros(2), Generator().manual_seed(seed)) for seed in (3, 4, 3)]
    assert all(
        torch.equal(a, torch.rand(2, generator=Generator().manual_seed(seed)))
        for a, seed in zip(found, (3, 4, 3), strict=True)
    )


def test_a_generator_that_no_variable_has_is_refused_with_the_line() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"Keep it in a variable\. It happened at .*Generator\(\)\.manual_seed\(3\)",
    ):
        aot_function(lambda x: x + torch.rand(2, generator=Generator().manual_seed(3)), nop)(
            torch.zeros(2)
        )


def test_a_generator_that_the_program_gives_a_state_is_refused() -> None:
    def program(x: Any) -> Any:
        g = Generator()
        g.set_state(used)
        return x + torch.rand(2, generator=g)

    own = Generator().manual_seed(3)
    torch.rand(2, generator=own)
    used = own.get_state()
    with pytest.raises(RuntimeError, match="its state is that of no seed below"):
        aot_function(program, nop)(torch.zeros(2))


def test_a_generator_of_the_cpu_is_seeded_by_each_call_beside_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    compiled = aot_function(makes_two, nop)
    assert all(torch.equal(compiled(torch.ones(2)), makes_two(torch.ones(2))) for _ in range(2))
    with pytest.raises(RuntimeError, match="sets the state of a random generator"):
        aot_function(lambda x: (torch.manual_seed(3), x + torch.rand(2))[1], nop)(torch.ones(2))


class Depths:
    def __init__(self) -> None:
        self.held = [[Generator().manual_seed(3)]]


def test_a_generator_that_no_path_leads_to_is_refused_if_just_seeded_and_else_goes_on() -> None:
    depths = Depths()
    # an iterator with too many items to look at
    source = itertools.repeat([depths.held[0][0], *range(10_000)])

    def program(x: Any) -> Any:
        return x + torch.rand(2, generator=next(source)[0])

    with pytest.raises(RuntimeError, match="a generator that was just seeded"):
        aot_function(program, nop)(torch.zeros(2))
    same = Generator().manual_seed(3)
    torch.rand(2, generator=depths.held[0][0]), torch.rand(2, generator=same)
    compiled = aot_function(program, nop)
    assert all(
        torch.equal(compiled(torch.zeros(2)), torch.rand(2, generator=same)) for _ in range(3)
    )


def test_an_argument_is_seeded_by_each_call() -> None:
    def program(x: Any, g: torch.Generator) -> Any:
        g.manual_seed(3)
        return x + torch.rand(2, generator=g)

    compiled, used = aot_function(program, nop), Generator()
    found = [compiled(torch.zeros(2), used) for _ in range(3)]
    assert all(torch.equal(x, program(torch.zeros(2), Generator())) for x in found)


@pytest.mark.parametrize(
    "seed", [torch.Generator.seed, lambda g: g.manual_seed(1 << 40), lambda g: g.manual_seed(-1)]
)
def test_a_generator_with_a_seed_that_may_be_random_is_refused(seed: Any) -> None:
    def program(x: Any) -> Any:
        seed(g := Generator())
        return x + torch.rand(2, generator=g)

    with pytest.raises(RuntimeError, match="its state is that of no seed below"):
        aot_function(program, nop)(torch.zeros(2))


def other(seed: int) -> torch.Generator:
    return Generator().manual_seed(seed)


TAKEN: dict[str, Callable[[], torch.Generator]] = {
    "a clone": lambda: GENERATOR.clone_state(),
    "the state of another one": lambda: (g := Generator()).set_state(GENERATOR.get_state()) or g,
    "that of the default one": lambda: (g := Generator()).set_state(torch.get_rng_state()) or g,
    "a seed and one more": lambda: other(torch.initial_seed() + 1),
    "a part of a seed": lambda: other(torch.initial_seed() % 2**32),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_state_that_is_taken_from_another_one_is_refused(kind: str) -> None:
    make = TAKEN[kind]

    def program(x: Any, drawn: int) -> Any:
        x = x + sum(torch.rand(2) + torch.rand(2, generator=GENERATOR) for _ in range(drawn))
        g = make()
        return x + torch.rand(2, generator=g)

    for drawn in (0, 1):
        with pytest.raises(RuntimeError, match=rf"to one that it takes from another state|{ASKED}"):
            aot_function(program, nop)(torch.zeros(2), drawn)


def uses_a_state(x: Any) -> Any:
    torch.rand(2)
    return x + torch.get_rng_state()[:2]


def returns_a_state(x: Any) -> Any:
    return x * 2, GENERATOR.get_state()


@pytest.mark.parametrize(
    "way", [lambda f: aot_function(f, nop)(torch.ones(2)), lambda f: export(f, (torch.ones(2),))]
)
@pytest.mark.parametrize("program", [uses_a_state, returns_a_state])
def test_a_state_as_a_tensor_is_refused(program: Any, way: Any) -> None:
    with pytest.raises(
        RuntimeError, match="uses the state of a random generator, and a graph would keep"
    ):
        way(program)


@pytest.mark.parametrize(
    "way", [lambda f: aot_function(f, nop)(torch.ones(2)), lambda f: export(f, (torch.ones(2),))]
)
@pytest.mark.parametrize("generator", [torch.default_generator, GENERATOR])
def test_a_seed_as_a_number_is_refused(generator: torch.Generator, way: Any) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"calls torch.Generator.initial_seed.*a graph keeps what it has returned",
    ):
        way(lambda x: x * generator.initial_seed())


def test_a_generator_that_the_program_makes_and_keeps_is_refused_with_the_line() -> None:
    kept: list[torch.Generator] = []

    def program(x: Any) -> Any:
        kept.append(g := Generator().manual_seed(3))
        return x + torch.rand(2, generator=g)

    with pytest.raises(
        RuntimeError,
        match=r"is still there when it has returned.*return x \+ torch.rand\(2, generator=g\)",
    ):
        aot_function(program, nop)(torch.zeros(2))


def test_an_exported_graph_does_not_seed_what_an_object_holds() -> None:
    with pytest.raises(
        RuntimeError, match="sets the state of a random generator, and an exported graph cannot"
    ):
        export(seeds_what_an_object_holds, (torch.ones(2),))


def test_threads_draw_in_turn_from_a_generator_that_each_call_makes() -> None:
    def program(x: Any) -> Any:
        g = Generator().manual_seed(5)
        return x + torch.rand(100_000, generator=g) * torch.rand(100_000, generator=g)

    compiled, x = runtime.jit(program), torch.zeros(1)
    expected, found = program(x), [compiled(x), compiled(x)]
    with ThreadPoolExecutor(4) as pool:
        found += pool.map(lambda _: compiled(x), range(40))
    assert all(torch.equal(y, expected) for y in found)
