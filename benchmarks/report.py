"""Outcomes as tables and as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cells import Outcome
from benchmarks.timing import geometric_mean

GOALS = {("transforms", "small"): 1.5, ("transforms", "large"): 1.1, ("jit", ""): 0.22}


def _shown(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    if outcome.ratio is None:
        return "[red]error[/red]"
    value, goal = outcome.ratio.value, outcome.cell.goal
    if outcome.cell.milliseconds:
        return f"{value:.2f}, {1e3 * outcome.ratio.ours:.0f} ms"
    if goal is not None:
        colour = "green" if value <= goal else "red"
        return f"[{colour}]{value:.2f}[/{colour}] of {goal:g}"
    colour = "green" if value <= 1 else "yellow" if value <= 1.5 else "red"
    return f"[{colour}]{value:.2f}[/{colour}]"


def means(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], float]:
    """The geometric mean of the ratios of each suite and size."""
    groups: dict[tuple[str, str], list[float]] = {}
    for o in outcomes:
        if o.ratio is not None:
            groups.setdefault((o.cell.suite, o.cell.size), []).append(o.ratio.value)
    return {key: geometric_mean(ratios) for key, ratios in groups.items()}


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print one table per suite and size, with a row per program and a column per transform. Then
    list the cells without a ratio."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault((o.cell.suite, o.cell.size), []).append(o)
    mean = means(outcomes)
    for key, group in groups.items():
        columns = list(dict.fromkeys(o.cell.what for o in group))
        table = Table(
            title=f"{' · '.join(filter(None, key))}: time of the runtime ÷ {group[0].cell.peer}",
            title_justify="left",
        )
        table.add_column("program")
        for column in columns:
            table.add_column(column, justify="right")
        for program in dict.fromkeys(o.cell.program for o in group):
            found = {o.cell.what: o for o in group if o.cell.program == program}
            table.add_row(program, *(_shown(found.get(column)) for column in columns))
        console.print(table)
        if key in mean and key in GOALS:
            console.print(f"geometric mean {mean[key]:.2f} (goal: at most {GOALS[key]})")
        for o in group:
            if o.ratio is None:
                console.print(f"no ratio for {o.cell.name}: {o.error}", style="red", markup=False)


def as_data(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = []
    for o in outcomes:
        row: dict[str, Any] = {
            key: getattr(o.cell, key) for key in ("suite", "size", "program", "what", "peer")
        }
        if o.cell.goal is not None:
            row["goal"] = o.cell.goal
        if o.ratio is None:
            row["error"] = o.error
        else:
            row |= {
                "ratio": o.ratio.value,
                "quartiles": [o.ratio.low, o.ratio.high],
                "rounds": o.ratio.rounds,
            }
            row |= {"runtime_seconds": o.ratio.ours, "peer_seconds": o.ratio.peer}
        data.append(row)
    return data


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
