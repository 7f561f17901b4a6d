"""Draw the program of a number.

    draw(grammar, seed=0, number=7)     # the same program, always

Program ``number`` has the pair ``number`` of a statement, another one and a call, in an order that
the seed says. So the first programs have each such triple once, and none is left to chance. All
else is random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import Formatter
from typing import Any

from gen.grammar.drawn_program import GRADS, Call, Input, Program, Statement
from gen.grammar.model_world import ModelWorld
from gen.grammar.program_runs import by_model
from gen.grammar.word_tables import Grammar
from gen.reference.model.cell_geometry import Refused

# of a program: enough to repeat each kind of call, few enough to compile again for each
MOST_CALLS = 7
_TRIES = 6  # draws of a statement or a program that the model may refuse
_NAMES = "pqrstuvwxyz"  # of variables: `smaller_programs` tells them from arguments, a to c


def triple_of(grammar: Grammar, seed: int, number: int) -> tuple[str, str, str]:
    """Return the pair of statements and the call of a program. Numbers from 0 on have each such
    triple once, in an order that the seed says."""
    statements, calls = list(grammar.statements), list(grammar.calls)
    count = len(statements) ** 2 * len(calls)
    choices = random.Random(seed)
    start, step = choices.randrange(count), choices.randrange(count)
    # a step that has no divisor in common with the count comes to each place once
    while math.gcd(step, count) != 1:
        step += 1
    pair, call = divmod((start + number * step) % count, len(calls))
    one, two = divmod(pair, len(statements))
    return statements[one], statements[two], calls[call]


class Drawing:
    """The choices of one program."""

    def __init__(self, grammar: Grammar, triple: tuple[str, str, str], seed: str) -> None:
        self.grammar = grammar
        self.one, self.two, self.call = triple
        self.random = random.Random(seed)
        self.names = iter(_NAMES)

    def program(self) -> Program | None:
        """Return a program with the triple. None if the model refuses all that were tried."""
        for _ in range(_TRIES):
            try:
                return self._try()
            except (Refused, StopIteration):
                self.names = iter(_NAMES)
        return None

    def _try(self) -> Program:
        """Return one program with the triple. ``Refused`` if the model does not run it."""
        inputs = self._inputs()
        first = Call("first", inputs)
        world = ModelWorld()
        namespace: dict[str, Any] = dict(world.names)
        exec(first.text(), namespace)
        variables = [one.name for one in inputs]
        kinds = [self.one, *self._others(), self.two]
        statements = []
        # Each statement runs as soon as it is drawn, so that the next one can read its results.
        for kind in kinds:
            statement = self._statement(kind, variables, namespace)
            if statement is None and kind in (self.one, self.two):
                raise Refused(f"no place for {kind}")
            if statement is not None:
                statements.append(statement)
        results = self._results(variables, [one.name for one in inputs], namespace)
        program = Program(tuple(statements), results, (first,))
        # From the start: what was refused on the way may have written to a tensor before that.
        by_model(program)
        return self._with_calls(program)

    def _others(self) -> list[str]:
        count = self.random.choice((0, 0, 1, 1, 2, 3))
        return self.random.choices(list(self.grammar.statements), k=count)

    # --- inputs -----------------------------------------------------------------------------------

    def _inputs(self) -> tuple[Input, ...]:
        """Return one to three inputs. The first one shares no memory with another."""
        count = self.random.choice((1, 2, 2, 2, 3))
        inputs: list[Input] = []
        for name in "abc"[:count]:
            kinds = [word for word, how in self.grammar.inputs.items() if inputs or not how.of]
            # shapes of fresh inputs fit each other, so that more statements find a place
            weights = [6 if kind == "fresh" else 1 for kind in kinds]
            (kind,) = self.random.choices(kinds, weights)
            grad = self.random.choice(GRADS)
            inputs.append(self._input(name, kind, grad, inputs, 2, 3))
        return tuple(inputs)

    def _input(
        self, name: str, kind: str, grad: str, before: Sequence[Input], n: int, m: int
    ) -> Input:
        """Return an input of a kind. `before`: those that it may share memory with. `n`, `m`: the
        sizes of its base."""
        how = self.grammar.inputs[kind]
        if how.of:
            if not before:
                raise Refused("no input before it")
            other = before[0].name
            return Input(name, kind, "plain", how.text.format(other=other, n=n, m=m), other)
        make = "numbers"
        if how.complex:
            make = "complex_numbers"
        shape = how.shape.format(n=n, m=m)
        base = f"{make}({shape}{', ' if shape else ''}seed={self.random.randrange(9)})"
        if grad != "plain":
            base = f"leaf({base})"
        if grad == "computed":
            base = f"({base} * 1)"
        return Input(name, kind, grad, how.text.format(x=base, n=n, m=m))

    # --- statements and results -------------------------------------------------------------------

    def _statement(
        self, kind: str, variables: list[str], namespace: dict[str, Any]
    ) -> Statement | None:
        """Return a statement of this kind that the model runs. None if no choice fits."""
        template = self.grammar.statements[kind]
        for _ in range(_TRIES):
            new_names: list[str] = []
            text = self._filled(template, variables, new_names)
            try:
                exec(text, namespace)
            except (Refused, IndexError, ValueError):
                continue
            variables += [name for name in dict.fromkeys(new_names) if name not in variables]
            return Statement(kind, text)
        return None

    def _filled(self, template: str, variables: Sequence[str], new_names: list[str]) -> str:
        """Return a text with names in its slots. A new name is the same in all slots of a line."""
        slots = {slot for _, slot, _, _ in Formatter().parse(template) if slot}
        # in an order that is the same in each process, unlike that of a set
        chosen = {slot: self._variable(variables) for slot in sorted(slots - {"new"})}
        if "new" in slots:
            chosen["new"] = next(self.names)
            new_names.append(chosen["new"])
        return template.format(**chosen)

    def _variable(self, variables: Sequence[str]) -> str:
        """Return a variable, more often a later one."""
        # what is computed last is read least, if all are drawn alike
        return self.random.choice([*variables, *variables[-2:]])

    def _results(
        self, variables: Sequence[str], inputs: Sequence[str], namespace: dict[str, Any]
    ) -> tuple[Statement, ...]:
        """Return one to three results. What the model refuses becomes a plain variable."""
        results = []
        for _ in range(self.random.choice((1, 1, 2, 2, 3))):
            (kind,) = self.random.choices(list(self.grammar.results))
            chosen = {"a": self._variable(variables), "b": self._variable(variables)}
            template = self.grammar.results[kind]
            text = template.format(input=self.random.choice(inputs), **chosen)
            try:
                eval(text, dict(namespace))
            except (Refused, IndexError, ValueError):
                kind, text = "value", variables[-1]
            results.append(Statement(kind, text))
        return tuple(results)

    # --- calls ------------------------------------------------------------------------------------

    def _with_calls(self, program: Program) -> Program:
        """Return the program with the call of the triple, and others that the model runs."""
        kinds = list(self.grammar.calls)
        self.random.shuffle(kinds)
        kinds.remove(self.call)
        # the call of the triple comes first, while few objects are there that it could not repeat
        for kind in [self.call, *kinds][: MOST_CALLS - 1]:
            try:
                longer = replace(program, calls=(*program.calls, self._call(kind, program)))
                by_model(longer)
            except (Refused, IndexError, ValueError):
                continue
            program = longer
        return program

    def _call(self, kind: str, program: Program) -> Call:
        """Return a call that differs from the first one as the grammar says of its kind."""
        how = self.grammar.calls[kind]
        before = program.calls[-1]
        if how.same:
            lines = [
                f"with torch.no_grad():\n    {how.before.format(input=one.name)}"
                for one in before.inputs
                if how.before and not one.other
            ]
            return replace(before, kind=kind, before="\n".join(lines), repeats=True)
        first = program.calls[0]
        inputs: list[Input] = []
        for one in first.inputs:
            other_kind = self._kind(one.kind, how.kinds, bool(inputs))
            grad = one.grad
            if how.grad:
                grad = {"plain": "computed", "leaf": "plain", "computed": "plain"}[grad]
            inputs.append(self._input(one.name, other_kind, grad, inputs, how.n, how.m))
        return Call(kind, tuple(inputs), how.dtype, how.around, how.before)

    def _kind(self, kind: str, kinds: Mapping[str, list[str]], has_others: bool) -> str:
        """Return the kind that an input has in another call."""
        choices = [
            word
            for word in kinds.get(kind, [kind])
            if has_others or not self.grammar.inputs[word].of
        ]
        return self.random.choice(choices or [kind])


def draw(grammar: Grammar, seed: int, number: int) -> Program | None:
    """Return the program of a number. None if the model knows none with its triple."""
    triple = triple_of(grammar, seed, number)
    return Drawing(grammar, triple, f"{seed}:{number}").program()
