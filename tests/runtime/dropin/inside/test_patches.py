"""Replacing names everywhere, putting them back for a while, and undoing it for good.

Inside: ``runtime.dropin.patches.Patches``. The drop-in replaces names of torch alone, so that
names of a test's own, absent ones and modules that come and go need the class itself."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from runtime.dropin.patches import Patches


def test_what_was_absent_is_absent_again_and_what_was_set_twice_is_the_first() -> None:
    class Owner:
        present = 1

    class Heir(Owner):
        pass

    patches = Patches()
    patches.set(Owner, "present", 2)
    patches.set(Owner, "present", 3)
    patches.set(Owner, "absent", 4)
    patches.set(Heir, "present", 5)
    assert (Owner.present, Owner.absent, Heir.present) == (3, 4, 5)  # type: ignore[attr-defined]
    patches.undo()
    assert (
        Owner.present == Heir.present == 1
        and not hasattr(Owner, "absent")
        and "present" not in vars(Heir)
    )
    Owner.present = 6
    patches.undo()
    assert Owner.present == 6  # once is enough


def test_the_class_of_a_module_is_changed_and_restored() -> None:
    class Other(ModuleType):
        pass

    module, patches = ModuleType("module"), Patches()
    patches.set(module, "__class__", Other)
    assert type(module) is Other
    patches.undo()
    assert type(module) is ModuleType


def test_contexts_are_left_on_undoing() -> None:
    left: list[str] = []
    patches = Patches()
    patches.enter(
        contextlib.closing(type("Thing", (), {"close": lambda self: left.append("left")})())
    )
    assert left == []
    patches.undo()
    assert left == ["left"]


def test_names_are_replaced_in_every_module_but_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, equal = [1], [2], [1]
    outside, inside, empty = (
        ModuleType("outside"),
        ModuleType("runtime.inside"),
        ModuleType("empty"),
    )
    for module in (outside, inside):
        module.taken, module.equal = old, equal  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "missing", None)
    monkeypatch.setitem(sys.modules, "odd", object())
    monkeypatch.setitem(sys.modules, "zzz_last", empty)
    empty.taken = old  # type: ignore[attr-defined]
    patches = Patches()
    patches.replace_everywhere({id(old): (old, new)})
    assert (
        outside.taken is new
        and empty.taken is new
        and inside.taken is old
        and outside.equal is equal
    )
    patches.undo()
    assert outside.taken is old


PAIR = ["old"], ["new"]  # not names of this module, which would be replaced as well
TABLE = {id(PAIR[0]): PAIR}
Make = Callable[..., Any]


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Make:
    """``imported(name, attribute=value, …)``: a module of that name that the
    program has imported."""

    def make(name: str, **names: Any) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


def owner_of(**names: Any) -> Any:
    """A class with these attributes."""
    return type("Owner", (), names)


def test_a_value_is_replaced_by_its_identity() -> None:
    old, new = PAIR
    patches = Patches()
    assert not patches.replaces(old)
    patches.replace_everywhere(TABLE)
    assert patches.replaces(old) and not patches.replaces(new) and not patches.replaces(["old"])
    patches.undo()
    stale = {id(new): (old, new)}  # the id of an object that has gone
    patches.replace_everywhere(stale)
    assert not patches.replaces(new)


def test_names_that_come_later_are_replaced_by_the_next_look(imported: Make) -> None:
    old, new = PAIR
    patches, first = Patches(), imported("first", a=old)
    patches.replace_everywhere(TABLE)
    first.b = old
    other, again = imported("other", a=old), imported("again", a=old)
    patches.replace_everywhere(TABLE)
    assert first.a is first.b is other.a is again.a is new
    reloaded = imported("again", a=old)  # as many names as the module before
    patches.replace_everywhere(TABLE)
    assert reloaded.a is new
    patches.undo()
    assert first.a is first.b is other.a is again.a is reloaded.a is old


def test_while_suspended_all_is_as_it_was_and_then_as_it_is(imported: Make) -> None:
    old, new = PAIR
    patches, module, owner = Patches(), imported("before", a=old), owner_of(a=1)
    patches.replace_everywhere(TABLE)
    patches.set(owner, "a", 2)
    patches.set(owner, "b", 3)
    since, torchs = imported("since", a=new), imported("torch.since", a=new)
    module.c = new

    def replaced() -> list[bool]:
        return [
            module.a is new,
            module.c is new,
            since.a is new,
            torchs.a is new,
            owner.a == 2,
            getattr(owner, "b", None) == 3,
        ]

    with patches.suspended():
        assert (
            not any(replaced())
            and module.a is module.c is since.a is torchs.a is old
            and owner.a == 1
        )
        with patches.suspended():
            assert not any(replaced())
        assert not any(replaced())
        meanwhile = imported("meanwhile", a=old)
    assert all(replaced()) and meanwhile.a is new
    with pytest.raises(KeyError), patches.suspended():
        raise KeyError
    assert all(replaced())
    with patches.suspended():
        assert not any(replaced()) and meanwhile.a is old
    assert all(replaced())
    patches.undo()
    assert module.a is meanwhile.a is old and owner.a == 1 and not hasattr(owner, "b")


def test_a_module_imported_while_suspended_is_replaced_when_it_ends(imported: Make) -> None:
    old, new = PAIR
    patches = Patches()
    patches.replace_everywhere(TABLE)
    for _ in range(2):
        with patches.suspended():
            meanwhile = imported("meanwhile", a=old)
        assert meanwhile.a is new and patches.replaces(old)
    patches.undo()
    assert meanwhile.a is old


def test_what_was_undone_stays_so_when_something_else_is_replaced_later(imported: Make) -> None:
    old, new = PAIR
    patches, owner, torchs = Patches(), owner_of(a=1), imported("torch.later")
    patches.replace_everywhere(TABLE)
    patches.set(owner, "a", 2)
    torchs.a = new
    patches.undo()
    assert owner.a == 1 and torchs.a is old
    owner.a, torchs.a = 3, "own"
    patches.undo()
    assert owner.a == 3 and torchs.a == "own"


def test_a_value_that_a_program_sets_itself_comes_back_after_a_suspension() -> None:
    patches, owner = Patches(), owner_of(a=1)
    patches.set(owner, "a", 2)
    owner.a = 3
    with patches.suspended():
        assert owner.a == 1
    assert owner.a == 3
    del owner.a
    with patches.suspended():
        assert owner.a == 1
    assert not hasattr(owner, "a")


def test_undoing_gives_torchs_modules_their_names_back_and_leaves_a_users_module_ours(
    imported: Make,
) -> None:
    old, new = PAIR
    patches = Patches()
    patches.replace_everywhere(TABLE)
    users = imported("users", a=new)
    torchs = [
        imported(name, a=new) for name in ("torch.imported", "functorch.imported", "functorch")
    ]
    patches.undo()
    assert users.a is new and [module.a for module in torchs] == [old] * 3
    users.a, torchs[0].a = 1, 2
    patches.undo()
    assert users.a == 1 and torchs[0].a == 2


def test_undoing_leaves_what_was_deleted_meanwhile_absent() -> None:
    patches, owner = Patches(), owner_of()
    patches.set(owner, "a", 1)
    del owner.a
    patches.undo()
    assert not hasattr(owner, "a")


def test_a_second_thread_waits_until_the_first_is_no_longer_suspended() -> None:
    patches, order = Patches(), list[str]()
    inside = threading.Event()

    def second() -> None:
        inside.wait(10)
        with patches.suspended():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with patches.suspended():
        inside.set()
        thread.join(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
