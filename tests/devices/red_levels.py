"""Which level is red for a fault of the device: the first one with a cell that fails by it.

    RedLevels(campaign).of("tail")      # ("elementwise", "torch.cos")

Of each level the cells of those rows run that call the faulty op, in the order of the level. A cell
counts if it passes without the fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gen.language.backend_levels import Level, read_levels

if TYPE_CHECKING:
    from tests.devices.campaign import Campaign

__all__ = ["RedLevels"]


class RedLevels:
    """The levels of the matrix, to run with faults."""

    def __init__(self, campaign: Campaign, levels: list[Level]) -> None:
        self._campaign = campaign
        self._levels = [level for level in levels if not level.spec.absent]

    @classmethod
    def of_matrix(cls, campaign: Campaign) -> RedLevels:
        return cls(campaign, read_levels(campaign.root / "matrix.yaml"))

    def of(self, fault: str, rows: tuple[str, ...]) -> tuple[str, str]:
        """Return the name of the level, and the op that its summary names. Empty if none is
        red."""
        for level in self._levels:
            found = self._campaign.try_fault(fault, self._keys(level, rows))
            if found.key:
                return level.spec.name, self._campaign.cells[found.key][1].op
        return "", ""

    def _keys(self, level: Level, rows: tuple[str, ...]) -> list[str]:
        """Return the cells of some rows in a level, in its order."""
        ranked = []
        for key, (check, cell) in self._campaign.cells.items():
            if cell.op in rows and level.has(cell.op, check.name, cell.dtype, cell.axes):
                ranked.append((level.rank(cell.op) or 0, key))
        return [key for _, key in sorted(ranked)]
