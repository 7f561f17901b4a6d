"""A program that draws random numbers in Python is refused, and leaves the states of the generators
as they were. One that reads such a state, or puts it back, is one for each state."""

import copy
import operator
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import runtime
from runtime.aot import aot_function, nop

OWN, LEGACY, NEW = random.Random(), np.random.RandomState(), np.random.default_rng(3)
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy.random": np.random.rand,
    f"{__name__}.OWN": lambda: OWN.random(),
    f"{__name__}.LEGACY": lambda: LEGACY.rand(),
    f"{__name__}.NEW": lambda: NEW.random(),
}


def seed() -> None:
    for source in (random, np.random, OWN, LEGACY):
        source.seed(3)
    NEW.bit_generator.state = np.random.default_rng(3).bit_generator.state


@pytest.mark.parametrize("way", [runtime.jit, lambda f: aot_function(f, nop)])
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_in_python_is_refused_with_its_line_and_undone(name: str, way: Any) -> None:
    draw = DRAWS[name]
    seed()
    expected = draw()
    seed()
    with pytest.raises(RuntimeError, match=rf"draws from {name}, a .*test_python_draws\.py:"):
        way(lambda x: x * draw())(torch.ones(1))
    assert draw() == expected


def test_a_program_that_cannot_be_captured_draws_nothing() -> None:
    seed()
    expected = random.random()
    seed()
    with pytest.raises(RuntimeError, match="asks for the elements"):
        aot_function(lambda x: x * random.random() if x.sum() * random.random() > 0 else x, nop)(
            torch.ones(1)
        )
    assert random.random() == expected


def test_a_program_that_draws_by_torch_is_not_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.jit(lambda x: x * torch.rand(1) + OWN.__class__.__name__.count("R"))(torch.ones(1))


def _of_a_copy(r: random.Random) -> float:
    other = random.Random()
    other.setstate(r.getstate())
    return other.random()


def _and_put_back(r: random.Random) -> float:
    before = r.getstate()
    number = r.gauss(0, 1)
    r.setstate(before)
    return number


def _and_put_back_in_numpy(g: Any) -> float:
    if isinstance(g, np.random.RandomState):
        before = g.get_state()
        number = float(g.rand())
        g.set_state(before)
        return number
    source, bits = (g, g.bit_generator) if isinstance(g, np.random.Generator) else (None, g)
    state = bits.state
    number = float((source or np.random.Generator(bits)).random())
    bits.state = state
    return number


def _pickle(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


_rename = np.random.get_state
_find_state = operator.methodcaller("get_state")
_get_state: Any = np.random.RandomState.get_state
_look_up: Any = operator.attrgetter("bit_generator.state")

# the generator, what a program reads of its state, and a draw that others make between calls
READS: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any], Any]]] = {
    "Random, its state": (random.Random, _of_a_copy, lambda r: r.random()),
    "Random, a draw that is put back": (random.Random, _and_put_back, lambda r: r.random()),
    "Random, a deep copy": (
        random.Random,
        lambda r: copy.deepcopy(r).random(),
        lambda r: r.random(),
    ),
    "Random, a copy": (random.Random, lambda r: copy.copy(r).random(), lambda r: r.random()),
    "Random, a pickle": (random.Random, lambda r: _pickle(r).random(), lambda r: r.random()),
    "RandomState, a draw that is put back": (
        np.random.RandomState,
        _and_put_back_in_numpy,
        lambda g: g.rand(),
    ),
    "RandomState of other bits, a deep copy": (
        lambda: np.random.RandomState(np.random.PCG64(3)),
        lambda g: copy.deepcopy(g).rand(),
        lambda g: g.rand(),
    ),
    "RandomState, its state": (
        np.random.RandomState,
        lambda g: g.get_state()[2] + 1,
        lambda g: g.rand(),
    ),
    "RandomState, a deep copy": (
        np.random.RandomState,
        lambda g: copy.deepcopy(g).rand(),
        lambda g: g.rand(),
    ),
    "Generator, a draw that is put back": (
        np.random.default_rng,
        _and_put_back_in_numpy,
        lambda g: g.random(),
    ),
    "Generator, a deep copy": (
        np.random.default_rng,
        lambda g: copy.deepcopy(g).random(),
        lambda g: g.random(),
    ),
    "Generator, a pickle": (
        np.random.default_rng,
        lambda g: _pickle(g).random(),
        lambda g: g.random(),
    ),
    "BitGenerator, a draw that is put back": (
        np.random.PCG64,
        _and_put_back_in_numpy,
        lambda b: b.random_raw(),
    ),
    "RandomState, by a function that finds its state": (
        np.random.RandomState,
        lambda g: _find_state(g)[2] + 1,
        lambda g: g.rand(),
    ),
    "RandomState, by a method of its class": (
        np.random.RandomState,
        lambda g: _get_state(g)[2] + 1,
        lambda g: g.rand(),
    ),
    "Generator, by a path": (
        np.random.default_rng,
        lambda g: _look_up(g)["state"]["state"] % 997,
        lambda g: g.random(),
    ),
    "BitGenerator, a draw and back": (
        np.random.PCG64,
        lambda b: (b.random_raw() % 997, b.advance(-1))[0],
        lambda b: b.random_raw(),
    ),
    "BitGenerator, the next one": (
        np.random.PCG64,
        lambda b: np.random.Generator(b.jumped()).random(),
        lambda b: b.random_raw(),
    ),
    "SeedSequence, its children": (
        np.random.SeedSequence,
        lambda q: q.n_children_spawned + 1,
        lambda q: q.spawn(1),
    ),
    "Python's own, a draw that is put back": (
        lambda: random._inst,
        lambda _: _and_put_back(random),  # type: ignore[arg-type]
        lambda _: random.random(),
    ),
    "NumPy's own, its state by another name": (
        lambda: None,
        lambda _: _rename(legacy=True)[2] + 1,  # type: ignore[index]
        lambda _: np.random.rand(),
    ),
}


# a copy has a seed from the system before it has the state
@pytest.mark.filterwarnings("ignore:the program calls random:UserWarning")
@pytest.mark.parametrize("way", [runtime.jit, lambda f: aot_function(f, nop)])
@pytest.mark.parametrize("what", READS)
def test_the_state_of_a_generator_that_a_program_reads_is_state(what: str, way: Any) -> None:
    make, read, draw = READS[what]
    source = make()
    f = way(lambda x: x * read(source))
    for _ in range(4):
        for _ in range(2):  # the second call has the program of the first
            assert f(torch.ones(1)).item() == pytest.approx(read(source), rel=1e-6)
        draw(source)


def test_what_others_draw_is_no_state_of_a_program_that_has_a_seed() -> None:
    class Model:
        seed = 3
        own = np.random.default_rng(0)

    model = Model()
    f = runtime.jit(lambda x: x * model.seed)
    for _ in range(3):
        f(torch.ones(1))
        np.random.rand(), random.random(), model.own.random()
    assert len(f.captured) == 1


SPAWNING: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "SeedSequence": (np.random.SeedSequence(3), lambda q: q.spawn(1)[0].entropy),
    "Generator": (np.random.default_rng(3), lambda g: g.spawn(1)[0].random()),
    "PCG64": (np.random.PCG64(3), lambda b: b.spawn(1)[0].random_raw() % 7),
}


@pytest.mark.parametrize("kind", SPAWNING)
def test_a_child_of_a_generator_is_refused_and_the_error_says_that_it_is_there(kind: str) -> None:
    source, spawn = SPAWNING[kind]
    with pytest.raises(
        RuntimeError, match=rf"(?s)draws from .*, a {kind} of .*has drawn from"
    ) as error:
        runtime.jit(lambda x: x * spawn(source))(torch.ones(1))
    assert "test_python_draws.py" in str(error.value)


def test_a_bit_generator_from_which_a_program_draws_is_refused_and_put_back() -> None:
    bits = np.random.PCG64(3)
    with pytest.raises(RuntimeError, match=r"draws from .*, a PCG64 of"):
        runtime.jit(lambda x: x * (bits.random_raw() % 7))(torch.ones(1))
    assert bits.random_raw() == np.random.PCG64(3).random_raw()


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng, np.random.RandomState])
def test_a_generator_that_a_program_makes_without_a_seed_is_told_of(make: Any) -> None:
    with pytest.warns(UserWarning, match=r"the program calls random\..* keeps what that has"):
        runtime.jit(lambda x: x * (make().random() > 2))(torch.ones(1))


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng])
def test_a_generator_that_a_program_makes_with_a_seed_draws_the_same_numbers(make: Any) -> None:
    f = runtime.jit(lambda x: x * make(3).random())
    for _ in range(2):
        assert f(torch.ones(1)).item() == pytest.approx(make(3).random())
