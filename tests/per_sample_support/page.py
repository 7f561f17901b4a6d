"""Trials -> `docs/per_sample_support.md` and `docs/per_sample_blocks.md`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

from tests.per_sample_support.cases import FUNCTIONS_WITHOUT_A_ROW, WITHOUT_A_ROW
from tests.per_sample_support.trial import Trial

PAGE = "docs/per_sample_support.md"
BLOCKS_PAGE = "docs/per_sample_blocks.md"
HEAD = """\
# What per-sample gradients support

Written by `make docs`, by running each row; do not edit.

Each module of `torch.nn` runs in training mode, in double precision, on a batch of three samples, \
behind a linear layer.
Its gradients, their norms and a clipped sum are compared with those of a loop over the samples by \
torch's own engine.
There are two ways: `per_sample` is the context around an ordinary step, and `per_sample_grads` \
the function of the loss of one
sample ([per_sample.md](per_sample.md)).

- *yes*: all three agree with the loop.
- *slow*: they agree, and an op ran one sample at a time. A warning names the op once, and \
`runtime.func.batch.fallbacks` counts
  it.
- *refused*: the first sentence of the error. [Below](#refusals-in-full) is all of it, with what \
to write instead.

The last column has the functions of `torch.nn.functional` that the module calls. \
`grads.explain()` says how the gradients of a model
are kept.

{counts}
"""
BLOCKS_HEAD = """\
# What per-sample gradients support of other packages

Written by `make docs` where these packages are installed, by running each row; do not edit.

Blocks of timm, and models of two layers of transformers, run with random weights as the modules \
of [torch.nn](per_sample_support.md) do.
Some of their numbers are computed in single precision, so they are compared to four digits. A \
model is called `Bert` where its class is `BertModel`.
"""
_HEADER = "| {what} | `per_sample` | `per_sample_grads` | functions |\n|---|---|---|---|\n"


def page(modules: Sequence[Trial], functions: Sequence[Trial]) -> str:
    """The page: a table for each group, and the refusals in full."""
    text = HEAD.format(counts=_counts([*modules, *functions])) + _groups("##", modules)
    text += "\n## Functions that no module above calls\n\n"
    text += _HEADER.format(what="call") + "".join(map(_row, functions))
    text += "\n## Without a row\n\n| name | why |\n|---|---|\n"
    for name, why in (WITHOUT_A_ROW | FUNCTIONS_WITHOUT_A_ROW).items():
        text += f"| `{name}` | {why} |\n"
    return text + refusals([*modules, *functions])


def blocks_section(package: str, version: str, trials: Sequence[Trial]) -> str:
    """The section of one package on the page of blocks."""
    text = f"\n## {package} {version}\n\n{_counts(trials)}\n{_groups('###', trials)}"
    return text + refusals(trials).replace("## ", "### ").replace("full", f"full, {package}")


def _groups(level: str, trials: Sequence[Trial]) -> str:
    """A table for each group."""
    text = ""
    for group, members in groupby(trials, key=lambda trial: trial.case.group):
        text += f"\n{level} {group}\n\n{_HEADER.format(what='module')}"
        text += "".join(map(_row, members))
    return text


def refusals(trials: Iterable[Trial]) -> str:
    """The section with each refusal as it is raised."""
    rows: dict[str, list[str]] = {}
    for trial in trials:
        for error in filter(None, (trial.context.refusal, trial.function.refusal)):
            rows.setdefault(error, []).append(f"`{trial.case.text}`")
    parts = (f"\n{', '.join(own)}:\n\n    {_wrapped(error)}\n" for error, own in rows.items())
    return "\n## Refusals in full\n" + "".join(parts)


def _row(trial: Trial) -> str:
    calls = ", ".join(f"`{name}`" for name in trial.calls)
    cells = (f"`{trial.case.text}`", str(trial.context), str(trial.function), calls)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _counts(trials: Sequence[Trial]) -> str:
    """How many rows there are of each answer, for each way."""
    lines = ["| | yes | slow | refused |", "|---|---|---|---|"]
    for way, outcomes in (
        ("per_sample", [trial.context for trial in trials]),
        ("per_sample_grads", [trial.function for trial in trials]),
    ):
        answers = [outcome.answer for outcome in outcomes]
        counts = (str(answers.count(answer)) for answer in ("yes", "slow", "refused"))
        lines.append(f"| `{way}` | {' | '.join(counts)} |")
    return "\n".join(lines)


def _wrapped(error: str) -> str:
    """An error as a block of code."""
    return "\n    ".join(line for text in error.splitlines() for line in textwrap.wrap(text, 110))
