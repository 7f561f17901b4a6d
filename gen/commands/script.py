"""Run `gen script CASE`: print a stand-alone program of what a cell does to one sample."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from gen.checks.case import Case, Claim
from gen.checks.tables import Cell, Family
from gen.commands.explain import case_of
from gen.errors import MatrixError
from gen.outcomes import Vacuous
from gen.plan.cell_sets import Column, Plan
from gen.plan.matrix_plan import above, load_plan
from gen.scripts.failures import of_case
from gen.scripts.python_values import NoScript
from gen.scripts.standalone import Script
from gen.targets import load
from gen.targets.protocol import Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen script`."""
    parser.add_argument(
        "case",
        metavar="CASE",
        help="a pytest id, as test_unary.py::test_vjp[torch.sin-float64], or op-dtype[-value…]",
    )
    parser.add_argument("--check", help="the check, if CASE does not name it")
    number = above(0, or_equal=True, kind=int)
    parser.add_argument(
        "--sample",
        type=number,
        metavar="N",
        help="this sample (default: the first that fails, else the first)",
    )
    parser.add_argument(
        "--target",
        default="torch",
        help="implementation that the program shows (default: %(default)s)",
    )
    parser.add_argument(
        "--matrix",
        type=Path,
        default=Path("matrix.yaml"),
        metavar="FILE",
        help="the matrix (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the program.

    Return 0 if it shows a difference, 1 if it shows none or there is no program, 2 if the input is
    wrong.
    """
    try:
        plan = load_plan(args.matrix)
        op, column = case_of(plan, args.case, args.check)
        target = load(args.target)
    except (MatrixError, LookupError) as error:
        print(error.args[0] if isinstance(error, LookupError) else error, file=sys.stderr)
        return 2
    try:
        script = program(plan, op, column, target, args.sample)
    except Vacuous as error:  # there is no such sample
        print(error, file=sys.stderr)
        return 2
    except NoScript as error:
        print(f"no program: {error}", file=sys.stderr)
        return 1
    print(script.text, end="")
    if not script.differs:
        print("the program shows no difference", file=sys.stderr)
    return 0 if script.differs else 1


def program(plan: Plan, op: int, column: Column, target: Target, sample: int | None) -> Script:
    """Return the program of the first comparison that fails and can be written, else of the first
    that can."""
    # The case has no entries: a program shows what the matrix expects to fail, too.
    row, check = plan.ops[op], plan.loaded.matrix.checks[column.check]
    family = Family(row.family, {row.name: row.row} if row.row else {})
    cell = Cell(row.name, column.dtype, column.axes, "full", ())
    case = Case(cell, column.check, family, target, only=sample)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        claim = Claim(check.pipeline, check.against, check.form, check.layout, check.values)
        return of_case(case, claim)
