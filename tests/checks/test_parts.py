"""The stage ``aot.parts``: rows compile their parts only there, and a target that is wrong at the
boundary of a part is noticed."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gen.checks import Case, Cell, Family
from gen.language.axes import USUAL, Axes
from gen.outcomes import Lacking, Mismatch, Vacuous
from gen.targets.parts import compiled, offered, parts_compiled
from gen.targets.runtime_target import RuntimeTarget
from gen.targets.torch_target import TorchTarget
from programs import boundaries

SAMPLES = [{"args": [{"shape": [3, 3]}]}]


class Faulty(TorchTarget):
    """A target whose parts run as they are, but for one fault. `info` is what its cache counts."""

    lacks = frozenset({"jit"})

    def __init__(self, fault: Callable[[Any], Any] = lambda f: f, **info: Any) -> None:
        super().__init__()
        self.fault, self.info, self.folders = fault, {"hits": 1, "misses": {}, **info}, list[str]()

    def part(self, f: Any, examples: Any, **options: Any) -> Any:
        return self.fault(f)

    def cache(self, folder: str) -> Any:
        self.folders.append(folder)
        return SimpleNamespace(info=lambda: SimpleNamespace(**self.info))


def check(row: str, target: Any, pipeline: str = "session . aot.parts", **axes: str) -> None:
    name = f"programs.{'boundaries' if hasattr(boundaries, row) else 'calls'}.{row}"
    cell = Cell(name, "float64", Axes.varying(axes), "full", ())
    Case(cell, "check", Family("tests", {name: {"samples": SAMPLES}}), target).assert_same(
        pipeline, against="eager"
    )


def on_copies(f: Any) -> Any:
    """Writes to arguments are lost, and results share no memory with them."""
    return lambda *args, **kwargs: f(
        *(x.clone() if isinstance(x, torch.Tensor) else x for x in args), **kwargs
    )


def of_copies(f: Any) -> Any:
    """Results share no memory with one another."""
    return lambda *args: tuple(x * 1 if isinstance(x, torch.Tensor) else x for x in f(*args))


def with_first(position: int) -> Callable[[Any], Any]:
    """The argument at `position` is for ever what it was in the first call."""

    def fault(f: Any) -> Any:
        first: list[Any] = []

        def g(*args: Any, **kwargs: Any) -> Any:
            first.extend([] if first else args)
            return f(*args[:position], first[position], *args[position + 1 :], **kwargs)

        return g

    return fault


def always_recorded(f: Any) -> Any:
    """Grad mode of the caller is not asked for."""
    return torch.enable_grad()(f)


def in_first_mode(f: Any) -> Any:
    """A module is for ever in the mode of the first call."""

    def g(*args: Any) -> Any:
        f.train()
        return f(*args)

    return g


def in_first_turn(f: Any) -> Any:
    """What the first call returned is returned for ever."""
    first: list[Any] = []

    def g(*args: Any) -> Any:
        first.extend([] if first else [f(*args)])
        return first[0]

    return g


def drawing_once_more(f: Any) -> Any:
    def g(*args: Any) -> Any:
        torch.rand(())
        return f(*args)

    return g


def not_written(f: Any) -> Any:
    """Tensors of the closure are restored after each call."""

    def g(*args: Any) -> Any:
        held = [
            cell.cell_contents
            for cell in f.__closure__
            if isinstance(cell.cell_contents, torch.Tensor)
        ]
        before = [x.clone() for x in held]
        found = f(*args)
        with torch.no_grad():
            for x, kept in zip(held, before, strict=True):
                x.copy_(kept)
        return found

    return g


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("same_twice", on_copies),
        ("overlapping_views", on_copies),
        ("two_views", on_copies),
        ("views_of_argument", of_copies),
        ("views_of_one_another", of_copies),
        ("views_of_inside", of_copies),
        ("other_shape", on_copies),
        ("written_part", on_copies),
        ("state_of_closure", not_written),
        ("history_in_closure", not_written),
        ("other_views_in_turn", with_first(1)),
        ("numbers_in_turn", with_first(1)),
        ("numbers_as_places", with_first(1)),
        ("shapes_in_turn", with_first(0)),
        ("gradients_in_turn", with_first(0)),
        ("gradients_in_turn", always_recorded),
        ("module_in_turn", in_first_mode),
        ("dropping_module", in_first_mode),
        ("draws", drawing_once_more),
        ("shown_twice", on_copies),
        ("views_without_grad", of_copies),
        ("rebound_numbers", in_first_turn),
        ("modes_in_turn", in_first_turn),
        ("objects", with_first(0)),
        ("of_two_parts", on_copies),
        ("hook_on_argument", on_copies),
        ("begun_inside", on_copies),
        ("unused_draws", drawing_once_more),
    ],
)
def test_a_fault_at_the_boundary_is_noticed(row: str, fault: Any) -> None:
    check(row, Faulty())
    with pytest.raises((Mismatch, RuntimeError)):
        check(row, Faulty(fault))


def test_a_part_is_compiled_in_the_stage_alone() -> None:
    def f(x: int) -> int:
        return x

    made: list[tuple[Any, ...]] = []

    def make(f: Any, examples: tuple[Any, ...]) -> Any:
        made.append((f, *examples))
        return str

    assert compiled(f) is f
    with parts_compiled(make):
        assert compiled(f) is str and compiled(f, 1, 2) is str
    assert made == [(f,), (f, 1, 2)] and compiled(f, 1) is f


def test_what_a_target_offers_is_given_in_the_stage_alone() -> None:
    def offer(name: str, otherwise: Any) -> Any:
        return name, otherwise

    assert offered("func.vmap", 3) == 3
    with parts_compiled(lambda f, examples: f, offer):
        assert offered("func.vmap", 3) == ("func.vmap", 3)
        with parts_compiled(lambda f, examples: f):
            assert offered("func.vmap", 3) == 3
        assert offered("func.vmap", 3) == ("func.vmap", 3)
    assert offered("func.vmap", 3) == 3


def test_the_runtime_offers_its_own_names_and_torch_what_stands_for_them() -> None:
    import runtime

    assert RuntimeTarget().offered("func.vmap", None) is runtime.func.vmap
    assert TorchTarget().offered("func.vmap", 3) == 3


def test_a_wrong_function_that_a_target_offers_is_noticed() -> None:
    class Doubling(Faulty):
        def offered(self, name: str, otherwise: Any) -> Any:
            return (
                (lambda *args, **sizes: 2 * otherwise(*args, **sizes))
                if self.info.get("twice") and name == "func.rearrange"
                else otherwise
            )

    name = "programs.transforms.rearranged"
    case = Case(
        Cell(name, "float64", USUAL, "full", ()),
        "check",
        Family("tests", {name: {"samples": SAMPLES}}),
        Doubling(),
    )
    case.assert_same("aot.parts", against="eager")
    case.target.info["twice"] = True  # type: ignore[attr-defined]
    with pytest.raises(Mismatch, match="largest error"):
        case.assert_same("aot.parts", against="eager")


def test_the_options_of_a_part_are_the_axes() -> None:
    seen: list[dict[str, Any]] = []

    class Noting(Faulty):
        lacks = frozenset[str]()

        def part(self, f: Any, examples: Any, **options: Any) -> Any:
            seen.append(options)
            return f

    check("hooks", Noting(), partition="budget", shapes="dynamic")
    check("hooks", Noting(), "aot.parts", by="jit")
    assert seen[0] == {"jits": False, "cache": None, "partition": "budget", "dynamic": True}
    assert seen[1] == {"jits": True, "cache": None, "partition": "default", "dynamic": False}


def test_partitions_are_loaded_by_another_cache_of_the_same_folder() -> None:
    target = Faulty()
    check("draws", target, cuts="loaded")
    assert len(target.folders) == 2 and len(set(target.folders)) == 1
    with pytest.raises(Mismatch, match=r"not found by the second one: a new graph"):
        check("draws", Faulty(misses={"a new graph": 1}), cuts="loaded")
    with pytest.raises(Vacuous, match="nothing to keep"):
        check("draws", Faulty(hits=0), cuts="loaded")


def test_what_a_target_lacks() -> None:
    with pytest.raises(Lacking, match="jit"):
        check("hooks", Faulty(), by="jit")
    with pytest.raises(Lacking, match="cuts"):
        check("hooks", TorchTarget(), cuts="loaded")


def test_a_wrong_gradient_and_a_wrong_result_of_a_session_are_noticed() -> None:
    class Scaled(Faulty):
        def session(self, f: Any, args: Any, cotangents: Any, kept: Any) -> Any:
            outputs, found = super().session(f, args, cotangents, kept)
            return tuple(x * self.info.get("value", 1) for x in outputs), tuple(
                x * self.info.get("gradient", 1) for x in found
            )

    check("hooks", Scaled())
    for wrong in ("value", "gradient"):
        target = Scaled()
        target.info[wrong] = 1.001
        with pytest.raises(Mismatch, match="largest error"):
            check("hooks", target)
