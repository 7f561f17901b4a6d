"""The samples of torch's OpInfo database, as the cells of the matrix draw them: the same in each
process."""

from __future__ import annotations

from gen.samples.opinfo import drawn

__all__ = ["drawn"]
