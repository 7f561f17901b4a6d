"""Take one shard of a run under pytest: import only the modules of the shard, and make only its
cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gen.checks.tables import TIERS, Cell, TableError
from gen.run.cell_durations import PLACE, read_durations
from gen.run.inventory import find, tables
from gen.run.selection.shard import Partition, Shard, lacks_the_largest_tier

__all__ = ["NO_LARGEST_TIER", "Sharding"]

NO_LARGEST_TIER = (
    "these modules have no cells beyond the tier full: "
    "`make matrix TIER=all` writes and runs all valid cells"
)


class _Elsewhere(pytest.Module):
    """A module of other shards, which is not imported."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        return iter(())


class Sharding:
    """Choose the cells of one shard. It is registered with pytest if the run takes one shard of
    several.
    """

    def __init__(self, shard: Shard, tier: str, selection: str) -> None:
        self.shard = shard
        self._tier = tier
        self._selection = selection
        self._partition: Partition  # made when the collection begins
        # the module that is being collected, and the shard's cells of it
        self._here: tuple[Path, dict[str, list[Cell]]] | None = None
        self._ids = False  # whether the command line names tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Divide the cells of all modules before any of them is imported."""
        config = session.config
        arguments = list(map(str, config.args))
        modules = find(arguments, config.rootpath, config.getini("python_files"))
        if self._tier == TIERS[-1] and lacks_the_largest_tier(modules):
            raise pytest.UsageError(NO_LARGEST_TIER)
        try:
            durations = read_durations(config.rootpath / PLACE)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        self._ids = any("::" in argument for argument in arguments)
        self._partition = Partition(modules, durations, self._tier, self.shard[1], self._selection)

    def facts(self) -> dict[str, object]:
        """Return what the header of the results says, for `gen merge`."""
        partition = self._partition
        return {
            "matrix": partition.matrix,
            "partition": partition.fingerprint,
            "cells": partition.cells,
        }

    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> pytest.Module | None:
        """Leave out modules that have nothing for this shard."""
        path = module_path.resolve()
        # Ids name cells, and any shard may have these.
        if self._ids or not self._partition.knows(path):
            return None
        if self._partition.touches(path, self.shard[0]):
            return None
        module: pytest.Module = _Elsewhere.from_parent(parent, path=module_path)
        return module

    def cells(self, module: Any, function: str) -> list[Cell]:
        """Return the shard's cells of one check."""
        path = Path(module.__file__).resolve()
        if self._here is None or self._here[0] != path:
            self._here = path, self._partition.part(path, tables(module, self._tier), self.shard[0])
        cells_by_check: Mapping[str, list[Cell]] = self._here[1]
        if function not in cells_by_check:
            raise TableError(
                f"{function}: a check of a sharded run is a function of its module, "
                "as in `gen generate`'s modules"
            )
        return cells_by_check[function]

    def has_others(self, item: pytest.Item) -> bool:
        """Return whether this shard runs the tests of the item's module that are no cells."""
        path = item.path.resolve()
        return not self._partition.knows(path) or self._partition.owner(path) == self.shard[0]

    def pytest_report_collectionfinish(self) -> str:
        """Return the shard and the digests of its partition as a line."""
        return (
            f"matrix: shard {self.shard[0]}/{self.shard[1]} of partition "
            f"{self._partition.fingerprint}, matrix {self._partition.matrix}"
        )
