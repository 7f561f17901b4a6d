"""Cuts on disk: a later program takes what an earlier one found, and no entry makes
a program wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from runtime import autograd, tensor
from runtime.aot import (
    Cache,
    CacheInfo,
    aot_function,
    aot_module,
    aot_module_simplified,
    cache_clear,
    cache_info,
    default_partition,
    min_cut_rematerialization_partition,
    nop,
)
from runtime.checkpoint import checkpoint

ROOT = Path(__file__).parents[4]
NEW = "a new graph"
VARIABLE = "RUNTIME_AOT_CACHE"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "programs")


def program(x: Any, w: Any) -> Any:
    return (x @ w).sin().exp().sum()


def gradients(
    f: Callable[..., Any], cache: Cache | None, size: int = 3, **options: Any
) -> list[torch.Tensor]:
    """What a call of ``f``, compiled anew, and its gradients are."""
    torch.manual_seed(0)
    x, w = (
        tensor(torch.randn(2, size).tolist(), requires_grad=True),
        tensor(torch.randn(size, 2).tolist(), requires_grad=True),
    )
    options.setdefault("partition_fn", min_cut_rematerialization_partition)
    out = aot_function(f, nop, cache=cache, **options)(x, w)
    out.backward()
    return [out.detach(), x.grad, w.grad]


def expected(f: Callable[..., Any], size: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(2, size).requires_grad_(), torch.randn(size, 2).requires_grad_()
    out = f(x, w)
    return [out.detach(), *torch.autograd.grad(out, (x, w))]


def agree(found: list[Any], wanted: list[Any]) -> None:
    torch.testing.assert_close([torch.tensor(t.tolist()) for t in found], wanted)


def only_file(cache: Cache) -> Path:
    (path,) = cache._folder.path.glob("*.json")
    return path


def entry_of(path: Path) -> dict[str, Any]:
    """Return what a file says behind its digest."""
    found: dict[str, Any] = json.loads(path.read_bytes().partition(b"\n")[2])
    return found


def write(path: Path, entry: dict[str, Any]) -> None:
    body = json.dumps(entry).encode()
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def forged(cache: Cache, **changes: Any) -> None:
    """Change fields of the only entry, with a right digest."""
    path = only_file(cache)
    write(path, {**entry_of(path), **changes})


def test_a_second_compilation_finds_the_cut_of_the_first(cache: Cache) -> None:
    first = gradients(program, cache)
    second = gradients(program, cache)
    agree(first, expected(program))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    info = cache.info()
    assert (info.hits, info.misses, info.bypasses, info.entries) == (1, {NEW: 1}, {}, 1)


def test_a_hit_cuts_where_the_entry_says_and_searches_for_nothing(cache: Cache) -> None:
    saved: list[list[str]] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        results: Any = module.graph.output_node().args[0]
        saved.append([n.name for n in results[1:]])
        return nop(module, inputs)

    def compile() -> None:
        x = tensor([0.5, 1.0], requires_grad=True)
        cut = min_cut_rematerialization_partition
        aot_function(sines, compiler, partition_fn=cut, cache=cache)(x)

    compile()
    assert saved == [["primals_1"]]
    forged(cache, saved=[0, 2])  # the argument, and behind the cotangent the first call
    compile()
    assert saved[1] == ["primals_1", "sin"] and cache.info().hits == 1


def test_a_hit_saves_what_the_search_had_saved(cache: Cache) -> None:
    modules: list[str] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        modules.append(str(module.graph))
        return nop(module, inputs)

    def f(x: Any, w: Any) -> Any:
        a, b = torch.var_mean(x @ w, 0)
        return (a.exp() * b.sigmoid()).sum() + nn.functional.layer_norm(x @ w, (2,)).square().sum()

    for _ in range(2):
        aot_function(f, compiler, partition_fn=min_cut_rematerialization_partition, cache=cache)(
            tensor([[1.0, 2.0]] * 3, requires_grad=True),
            tensor([[1.0, 0.5], [2.0, 1.0]], requires_grad=True),
        ).backward()
    assert cache.info().hits == 1 and modules[:2] == modules[2:]


def sines(x: Any) -> Any:
    return x.sin().exp().sum()


def test_a_second_process_finds_what_the_first_one_has_left(cache: Cache) -> None:
    text = (
        "import runtime\nfrom runtime.aot import aot_function, cache_info, "
        "min_cut_rematerialization_partition, nop\nf = aot_function(lambda x: "
        "x.sin().exp().sum(), nop, partition_fn=min_cut_rematerialization_partition)\n"
        "x = runtime.tensor([0.0], requires_grad=True)\nf(x).backward()\n"
        "print(cache_info().hits, dict(cache_info().misses), x.grad.tolist())\n"
    )
    aot_function(sines, nop, partition_fn=min_cut_rematerialization_partition, cache=cache)(
        tensor([0.0], requires_grad=True)
    )
    environment = {**os.environ, VARIABLE: str(cache._folder.path)}
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == "1 {} [1.0]\n", done.stderr


def _other_options() -> list[Any]:
    budget = partial(min_cut_rematerialization_partition, memory_budget=0.0)
    cheap = partial(min_cut_rematerialization_partition, recomputable_ops=[torch.ops.aten.sin])
    return [
        pytest.param({"partition_fn": budget}, "another partition", id="budget"),
        pytest.param({"partition_fn": cheap}, "another partition", id="ops"),
        pytest.param({"num_params_buffers": 1}, "another partition", id="parameters"),
        pytest.param({"dynamic": True}, NEW, id="dynamic"),
        pytest.param({"size": 4}, NEW, id="shape"),
        pytest.param(
            {"decompositions": {torch.ops.aten.exp.default: lambda x: torch.pow(torch.e, x)}},
            NEW,
            id="decomposition",
        ),
    ]


@pytest.mark.parametrize("options, reason", _other_options())
def test_another_configuration_is_another_entry_and_the_miss_says_which(
    cache: Cache, options: dict[str, Any], reason: str
) -> None:
    gradients(program, cache)
    found = gradients(program, cache, **options)
    agree(found, expected(program, options.get("size", 3)))
    info = cache.info()
    assert (
        info.hits == 0
        and info.entries == 2
        and sum(info.misses.values()) == 2
        and info.misses[reason] >= 1
    )


def test_another_version_is_another_entry(cache: Cache) -> None:
    gradients(program, cache)
    path = only_file(cache)
    entry = entry_of(path)
    versions = entry["key"]["versions"]
    assert f"torch {torch.__version__} " in versions and versions.count(" runtime ") == 1
    path.unlink()
    graph = path.name.partition("-")[0]
    key = {**entry["key"], "versions": "those of another machine"}
    write(path.with_name(f"{graph}-other.json"), {**entry, "key": key})
    gradients(program, cache)
    assert cache.info().misses == {NEW: 1, "another versions": 1}


def test_another_default_dtype_is_another_entry(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients(program, cache)
    try:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        x = tensor(
            torch.ones(2, 3, dtype=torch.float32).tolist(), dtype=torch.float32, requires_grad=True
        )
        w = tensor(
            torch.ones(3, 2, dtype=torch.float32).tolist(), dtype=torch.float32, requires_grad=True
        )
        aot_function(program, nop, partition_fn=min_cut_rematerialization_partition, cache=cache)(
            x, w
        ).backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert cache.info().misses == {NEW: 1, "another settings": 1}


def test_another_boundary_is_another_entry(cache: Cache) -> None:
    x = tensor([[1.0, 2.0]], requires_grad=True)
    for f in (
        lambda x: x.sin().exp(),
        lambda x: (x.sin().exp().view(-1), None),
        lambda x: (x.sin().exp(), x),
    ):
        aot_function(f, nop, partition_fn=min_cut_rematerialization_partition, cache=cache)(x)
    assert cache.info().hits == 0 and cache.info().entries == 3


def damages() -> list[Any]:
    """Changes of a file that are noticed by its digest, and forged entries with a right one."""
    generator = random.Random(0)
    return [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[: generator.randrange(10, 500)]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"saved", b"sived")),
        lambda path: path.write_bytes(generator.randbytes(1000)),
        lambda path: path.write_bytes(b"\x80\x04\x95"),  # how a pickle begins
        lambda path: (path.unlink(), path.mkdir()),
    ]


@pytest.mark.parametrize("damage", damages())
@pytest.mark.filterwarnings("ignore:runtime.aot cannot keep:UserWarning")
def test_a_damaged_file_is_made_again(cache: Cache, damage: Callable[[Path], object]) -> None:
    gradients(program, cache)
    damage(only_file(cache))
    agree(gradients(program, cache), expected(program))
    assert cache.info().hits == 0 and sum(cache.info().misses.values()) == 2
    if only_file(cache).is_file():
        gradients(program, cache)
        assert cache.info().hits == 1


FORGED: list[Any] = [
    None,
    5,
    {},
    "0",
    [True],
    [1.0],
    [[1]],
    [-1],
    [10**6],
    [10**30],
    [0, 0],
    [],
    ["sin"],
]


@pytest.mark.parametrize("saved", FORGED)
def test_a_forged_entry_is_refused_and_made_again(cache: Cache, saved: Any) -> None:
    gradients(program, cache)
    forged(cache, saved=saved)
    agree(gradients(program, cache), expected(program))
    (reason,) = cache.info().misses.keys() - {NEW}
    assert reason.startswith("a damaged entry")
    gradients(program, cache)
    assert cache.info().hits == 1


def test_an_entry_of_another_program_under_this_name_is_refused(cache: Cache) -> None:
    gradients(program, cache)
    content = only_file(cache).read_bytes()
    cache.clear()
    gradients(lambda x, w: (x @ w).cos().sum(), cache)
    only_file(cache).write_bytes(content)
    agree(
        gradients(lambda x, w: (x @ w).cos().sum(), cache),
        expected(lambda x, w: (x @ w).cos().sum()),
    )
    assert cache.info().misses == {NEW: 1, "a damaged entry: it is for another program": 1}


def dropped(x: Any, w: Any) -> Any:
    mask = torch.rand(2, 2) > 0.5
    return ((x @ w).exp() * mask).sin().sum()


def test_no_choice_of_saved_values_makes_a_wrong_program(cache: Cache) -> None:
    """Every forged cut of a program with a random draw is refused or gives the gradients
    of the same draw."""

    def seeded(x: Any, w: Any) -> Any:
        torch.manual_seed(3)
        return dropped(x, w)

    def found() -> list[torch.Tensor]:
        x, w = (
            tensor([[1.0, 2.0]] * 2, requires_grad=True),
            tensor([[0.5, 1.0]] * 2, requires_grad=True),
        )
        f = aot_function(
            dropped, nop, partition_fn=min_cut_rematerialization_partition, cache=cache
        )
        torch.manual_seed(3)
        out = f(x, w)
        out.backward()
        return [out.detach(), x.grad, w.grad]

    x, w = (
        torch.tensor([[1.0, 2.0]] * 2, requires_grad=True),
        torch.tensor([[0.5, 1.0]] * 2, requires_grad=True),
    )
    out = seeded(x, w)
    wanted = [out.detach(), *torch.autograd.grad(out, (x, w))]
    agree(found(), wanted)
    generator, taken = random.Random(1), 0
    for _ in range(60):
        # 2 is the tangent
        forged(cache, saved=[i for i in range(10) if i != 2 and generator.random() < 0.6])
        before = cache.info().hits
        agree(found(), wanted)
        taken += cache.info().hits - before
    assert 0 < taken < 60


def bypasses() -> list[Any]:
    def own(module: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        return min_cut_rematerialization_partition(module, inputs, **options)

    by_function = partial(min_cut_rematerialization_partition, may_recompute=lambda n: False)
    return [
        pytest.param(
            default_partition, "default_partition, which searches for nothing", id="default"
        ),
        pytest.param(own, "a partition that is not of this package", id="own"),
        pytest.param(
            by_function, "a function (may_recompute) decides what runs again", id="function"
        ),
    ]


@pytest.mark.parametrize("partition, reason", bypasses())
def test_what_has_no_key_is_left_alone_and_counted_with_the_reason(
    cache: Cache, partition: Any, reason: str
) -> None:
    for _ in range(2):
        agree(gradients(program, cache, partition_fn=partition), expected(program))
    assert cache.info() == CacheInfo(bypasses={reason: 2})


def test_counted_reasons_are_bounded(cache: Cache) -> None:
    for i in range(300):
        cache._count(cache._bypasses, f"reason {i}")
    found = cache.info().bypasses
    assert len(found) <= 101 and sum(found.values()) == 300


def test_elements_of_constants_are_those_of_this_process(cache: Cache) -> None:
    def scaled(by: float) -> Callable[..., Any]:
        return lambda x, w: ((x @ w).sin() * torch.tensor([by, 2 * by])).exp().sum()

    for by in (1.0, 3.0):
        agree(gradients(scaled(by), cache), expected(scaled(by)))
    assert cache.info().hits == 1


def test_a_custom_function_is_that_of_this_process(cache: Cache) -> None:
    def scaled(by: float) -> Any:
        class Scaled(autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * by

        return lambda x: Scaled.apply(x.sin()).exp().sum()

    for by in (5.0, 7.0):
        x = tensor([0.0], requires_grad=True)
        aot_function(
            scaled(by), nop, partition_fn=min_cut_rematerialization_partition, cache=cache
        )(x).backward()
        assert x.grad.tolist() == [by]


def test_checkpoint_regions_are_part_of_the_key(cache: Cache) -> None:
    def regional(x: Any, w: Any) -> Any:
        return checkpoint(lambda x: (x @ w).sin().exp(), x, use_reentrant=False).sum()

    gradients(program, cache)
    for _ in range(2):
        agree(gradients(regional, cache), expected(program))
    assert cache.info().hits == 1 and cache.info().misses == {NEW: 2}


def test_a_program_of_any_size_is_found_again(cache: Cache) -> None:
    for _ in range(2):
        agree(gradients(program, cache, dynamic=True), expected(program))
    assert cache.info().hits == 1


def test_modules_and_second_derivatives_use_the_cache_too(cache: Cache) -> None:
    for _ in range(2):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        x = tensor([[1.0, 2.0]], requires_grad=True)
        run = aot_module(module, nop, partition_fn=min_cut_rematerialization_partition, cache=cache)
        (g,) = autograd.grad(run(x).sum(), x, create_graph=True)
        (h,) = autograd.grad(g.square().sum(), x)
        plain = torch.tensor([[1.0, 2.0]], requires_grad=True)
        (pg,) = torch.autograd.grad(module(plain).sum(), plain, create_graph=True)
        (ph,) = torch.autograd.grad(pg.square().sum(), plain)
        agree([g.detach(), h], [pg.detach(), ph])
    info = cache.info()
    assert info.hits == 2 and info.misses == {NEW: 2} and not info.bypasses


def test_aot_module_simplified_uses_the_cache(cache: Cache) -> None:
    class Sines(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x.sin().exp(),)

    for _ in range(2):
        x = tensor([0.0], requires_grad=True)
        run = aot_module_simplified(
            Sines(), (x,), nop, partition_fn=min_cut_rematerialization_partition, cache=cache
        )
        run(x)[0].sum().backward()
        assert x.grad.tolist() == [1.0]
    assert cache.info().hits == 1


def test_a_folder_that_cannot_be_written_to_is_one_warning_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "below")
    with pytest.warns(
        UserWarning,
        match="cannot keep a program in .*: Not a directory. It goes on without.*RUNTIME_AOT_CACHE",
    ):
        agree(gradients(program, cache), expected(program))
    agree(gradients(program, cache), expected(program))  # warnings are errors here
    assert cache.info().hits == 0 and cache.info().entries == 0


def test_a_full_disk_is_one_warning_and_no_error(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        agree(gradients(program, cache), expected(program))
    agree(gradients(program, cache), expected(program))
    assert cache.info().entries == 0 and not list(cache._folder.path.glob("*.unfinished"))


def test_the_environment_names_a_folder_and_nothing_is_kept_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for _ in range(2):
        gradients(program, None)
    assert cache_info() == CacheInfo()
    cache_clear()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "programs"))
    for _ in range(2):
        gradients(program, None)
    assert cache_info().hits == 1 and cache_info().entries == 1
    cache_clear()
    assert cache_info() == CacheInfo()


def test_a_size_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_bytes=-1"):
        Cache(tmp_path, max_bytes=-1)


def test_what_a_cache_has_told_cannot_be_changed(cache: Cache) -> None:
    info: Any = cache.info()
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.hits = 7
    assert info == CacheInfo(0, {}, {}, 0, 0)
