"""The chart of docs/scaling.md: time and memory of coordinator and worker against the number
of cells, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

__all__ = ["Row", "chart"]

Row = tuple[int, float, float, float, float, float, float]
"""Cells; seconds and megabytes of the coordinator, of a resumed coordinator, and of a worker."""
_LINES = (
    ("coordinator", "#1f6fb4", 1),
    ("resumed at 99 of 100 cells", "#d9822b", 3),
    ("worker", "#3a9b57", 5),
)
_WIDTH, _HEIGHT, _LEFT, _TOP, _APART = 300, 200, 50, 40, 400


def chart(rows: Sequence[Row]) -> str:
    """The SVG: seconds on the left and megabytes on the right, on logarithmic scales."""
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 320" '
            'font-family="sans-serif" font-size="11">'
        )
    ]
    parts.append('<rect width="800" height="320" fill="white"/>')
    for panel, title in enumerate(("processor time (s)", "resident memory (MB)")):
        values = [row[place + panel] for row in rows for _, _, place in _LINES]
        parts += _panel(rows, panel, title, _decades(values))
    for number, (name, color, _) in enumerate(_LINES):
        at = _LEFT + 220 * number
        parts.append(
            f'<path d="M{at} 300h24" stroke="{color}" stroke-width="2"/><text x="{at + 30}" '
            f'y="304">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _panel(rows: Sequence[Row], panel: int, title: str, height: tuple[int, int]) -> list[str]:
    left = _LEFT + panel * _APART
    cells = [row[0] for row in rows]
    across = _scale(math.log10(cells[0]), math.log10(cells[-1]), left, left + _WIDTH)
    up = _scale(height[0], height[1], _TOP + _HEIGHT, _TOP)
    parts = [f'<text x="{left}" y="24" font-size="13">{title}</text>']
    for power in range(height[0], height[1] + 1):
        y = up(power)
        parts.append(f'<path d="M{left} {y:.0f}h{_WIDTH}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{10.0**power:g}</text>'
        )
    for count in cells:
        parts.append(
            f'<text x="{across(math.log10(count)):.0f}" y="{_TOP + _HEIGHT + 18}" '
            f'text-anchor="middle">{count:,}</text>'
        )
    parts.append(
        f'<text x="{left + _WIDTH / 2:.0f}" y="{_TOP + _HEIGHT + 36}" '
        'text-anchor="middle">cells</text>'
    )
    for _, color, place in _LINES:
        points = [(across(math.log10(row[0])), up(math.log10(row[place + panel]))) for row in rows]
        parts.append(
            f'<polyline points="{" ".join(f"{x:.0f},{y:.0f}" for x, y in points)}" fill="none" '
            f'stroke="{color}" stroke-width="2"/>'
        )
        parts += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{color}"/>' for x, y in points]
    return parts


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten that hold all values between them."""
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    return lambda value: begin + (value - low) / (high - low) * (end - begin)
