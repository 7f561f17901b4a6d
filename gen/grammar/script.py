"""The text of a script that shows a finding with torch alone.

python 001_aot_eager_result.py      # differs: result 0: got […], expected […]; exit code 1
"""

from __future__ import annotations

import ast
from pathlib import Path

from gen.grammar import observation, prelude
from gen.grammar.levels import LEVELS
from gen.grammar.observation import Observation
from gen.grammar.program import Call, Program
from gen.grammar.search import TOLERANCES, Difference
from gen.grammar.trial import by_model, by_torch


def script_of(program: Program, difference: Difference) -> str:
    """Return a script that prints what differs and exits with 1, or with 0 if nothing does."""
    level = LEVELS[difference.level]()
    whole = [
        f'"""{difference.level}: {difference.message.replace(chr(34), chr(39))}"""',
        "from __future__ import annotations\n",
        *_sources(),
        program.text(),
        "\nworld = World()\nglobals().update(world.names)",
        "own = len(world.leaves)",
        level.setup,
        f"function = {level.text}",
        f"is_twice_differentiable = {level.is_twice_differentiable}\n",
        _CALL,
    ]
    for call in program.calls:
        whole += [f"# {call.kind}", *_lines_of(call, program)]
    tolerance = TOLERANCES[program.calls[-1].dtype]
    whole += [f"expected = {_expected(program)!r}", _END.format(tolerance=tolerance)]
    return "\n".join(line for line in whole if line) + "\n"


_CALL = """
class Level:
    is_twice_differentiable = is_twice_differentiable

    @staticmethod
    def gradients(loss, leaves):
        return torch.autograd.grad(
            loss, list(leaves), retain_graph=True, create_graph=is_twice_differentiable,
            allow_unused=True,
        )


def call(arguments, records=True):
    versions = {name: x._version for name, x in arguments.items()}
    with torch.set_grad_enabled(records):
        results = function(*arguments.values())
    seen = of_torch(arguments, versions, results)
    if records:
        add_gradients(seen, world.leaves, results, Level)
    return seen

"""
_END = """difference = seen.differs(expected, {tolerance})
print(f"differs: {{difference}}" if difference else "as expected")
raise SystemExit(1 if difference else 0)"""


def _lines_of(call: Call, program: Program) -> list[str]:
    lines = [call.text()]
    if not call.repeats:
        lines = ["del world.leaves[own:]", f"world.set_dtype({call.dtype!r})", *lines]
    arguments = ", ".join(f"{name!r}: {name}" for name in program.names)
    return [*lines, f"seen = call({{{arguments}}}, records={not call.around})"]


def _expected(program: Program) -> Observation:
    """Return what the last call has by the model, and what else it has in eager mode."""
    truth = by_model(program)[-1]
    eager = by_torch(program, LEVELS["eager"]())[-1]
    facts = eager.facts if isinstance(eager, Observation) else {}
    return Observation(truth.values, facts)


def _sources() -> list[str]:
    """Return the text of the modules that a script has, without what only a module has."""
    texts = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in _MODULES]
    return [_without_head(text) for text in texts]


_MODULES = (prelude, observation)


def _without_head(text: str) -> str:
    """Return a module's text without its docstring and ``from __future__``."""
    second = ast.parse(text).body[2]
    return "\n".join(text.splitlines()[second.lineno - 1 :]) + "\n"
