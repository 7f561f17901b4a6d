"""Every kind of bad input gets a message with its place, what was expected and the nearest name;
all of them in one go."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

Mistakes = Callable[[str], list[str]]

BASE = """\
version: 1
dtypes: {real: [float32, float64]}
checks:
  vjp: {claim: vjp holds., pipeline: vjp, against: upstream}
  joint: {claim: The joint graph holds., pipeline: aot.joint, against: eager, over: {shapes: \
[static, dynamic]}}
families:
  pointwise:
    ops: [torch.sin, torch.mul]
"""


def test_the_base_of_these_cases_is_right(mistakes: Mistakes) -> None:
    assert mistakes(BASE) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            BASE.replace("dtypes:", "dtyps:"),
            (
                r'matrix.yaml:2:1: dtyps: unknown key "dtyps"; expected one of version, .*; '
                r'did you mean "dtypes"\?'
            ),
            id="unknown key",
        ),
        pytest.param(
            BASE.replace("claim: vjp", "clam: vjp"),
            r'matrix.yaml:4:9: checks.vjp.clam: unknown key "clam"; .*; did you mean "claim"\?',
            id="unknown key of a check",
        ),
        pytest.param(
            BASE.replace("torch.mul", "torch.mull"),
            (
                r'matrix.yaml:8:22: families.pointwise.ops\[1\]: unknown op "torch.mull"; '
                r'expected .*; did you mean "torch.mul"\?'
            ),
            id="unknown op",
        ),
        pytest.param(
            BASE.replace("torch.mul", "{op: torch.eigvalsh}"),
            (
                r'matrix.yaml:8:27: families.pointwise.ops\[1\].op: unknown op "torch.eigvalsh"; '
                r'.*did you mean "torch.linalg.eigvalsh"\?'
            ),
            id="unknown op, found by its last name",
        ),
        pytest.param(
            BASE.replace("torch.mul", "torch.fftt.*"),
            r'8:22: .*: no op of .* matches "torch.fftt.\*"',
            id="glob without ops",
        ),
        pytest.param(
            BASE.replace("torch.mul", "torch.sin"),
            r"8:22: .*the op \"torch.sin\" stands in the matrix twice \(first at matrix.yaml:8\)",
            id="op twice",
        ),
        pytest.param(
            BASE.replace(
                "torch.mul", "{op: own.a, call: 'nowhere.at:all', samples: [{args: [1]}]}"
            ),
            (
                r'families.pointwise.ops\[1\].call: there is no package or module "nowhere"; '
                r"expected one that is installed"
            ),
            id="call of a package that is not there",
        ),
        pytest.param(
            BASE.replace(
                "torch.mul", "{op: nowhere.a, samples: 'elsewhere:calls', reference: torch.mul}"
            ),
            r'ops\[1\].samples: there is no package or module "elsewhere"',
            id="samples of a package that is not there",
        ),
        pytest.param(
            BASE + "former_names: {torch.s: mine., torhc.: mine.}\n",
            r'former_names.torhc.: no row has a name that begins with "torhc."',
            id="former name of no row",
        ),
        pytest.param(
            BASE.replace("  pointwise:", "  Pointwise: {ops: [torch.cos]}\n  pointwise:"),
            'the families "Pointwise" and "pointwise" differ in case only',
            id="families that share a file",
        ),
        pytest.param(
            BASE.replace("float64", "flaot64"),
            (
                r'2:26: dtypes.real\[1\]: unknown dtype or dtype group "flaot64"; .*; '
                r'did you mean "float64"\?'
            ),
            id="unknown dtype",
        ),
        pytest.param(
            BASE + "    dtypes: [rael]\n",
            (
                r'9:14: families.pointwise.dtypes\[0\]: unknown dtype or dtype group "rael"; '
                r'.*did you mean "real"\?'
            ),
            id="unknown dtype group",
        ),
        pytest.param(
            BASE.replace("[float32, float64]", "[real]"),
            r'the dtype group "real" contains itself',
            id="circular dtype group",
        ),
        pytest.param(
            BASE.replace("pipeline: vjp", "pipeline: vmap . vpj"),
            (
                r'4:45: checks.vjp.pipeline: unknown transform "vpj" in pipeline "vmap . vpj"; '
                r'expected one of vmap, .*did you mean "vjp"\?'
            ),
            id="unknown transform",
        ),
        pytest.param(
            BASE.replace("pipeline: vjp", 'pipeline: "vmap vjp"'),
            (
                r'4:44: checks.vjp.pipeline: pipeline "vmap vjp": no ` . ` before "vjp"; '
                r"expected transforms with"
            ),
            id="pipeline syntax",
        ),
        pytest.param(
            BASE.replace("[torch.sin, torch.mul]", "[{op: torch.sin, dtypes: [complex32]}]"),
            (
                r"8:36: .*dtypes\[0\]: torch.sin does not take complex32 on the CPU; "
                r"expected one of bfloat16, "
            ),
            id="dtype that the op does not support",
        ),
        pytest.param(
            BASE
            + "xfail:\n  - {op: torch.sin, dtype: complex64, raises: E, match: m, reason: r}\n",
            (
                r'10:28: xfail\[0\].dtype\[0\]: dtype "complex64" is unknown; '
                r"expected one of float32, float64"
            ),
            id="xfail on a dtype that no case has",
        ),
        pytest.param(
            BASE
            + (
                "xfail:\n  - {op: torch.mul, check: vjp, axes: {shapes: dynamic}, raises: "
                "E, match: m, reason: r}\n"
            ),
            (
                r"10:5: xfail\[0\]: xfail matches no case: r; "
                r"expected an entry that is about something"
            ),
            id="xfail that matches nothing",
        ),
        pytest.param(
            BASE + "over: {run: {values: [plain, jited]}}\n",
            (
                r'9:\d+: over.run.values\[1\]: unknown value "jited" of axis run; '
                r'.*did you mean "jitted"\?'
            ),
            id="axis value of over",
        ),
        pytest.param(
            BASE + "over: {run: {values: [plain, jitted], not_checks: [vpj]}}\n",
            r'9:\d+: over.run.not_checks\[0\]: check "vpj" is unknown; .*did you mean "vjp"\?',
            id="check of over",
        ),
        pytest.param(
            BASE + "tiers: {full: {also: [{axes: {shapes: dynmic}}]}}\n",
            (
                r"9:\d+: tiers.full.also\[0\].axes.shapes\[0\]: "
                r'value of axis shapes "dynmic" is unknown; .*did you mean "dynamic"\?'
            ),
            id="axis value of a part",
        ),
        pytest.param(
            BASE + "tiers: {full: {also: [{checks: vjp, axes: {shapes: dynamic}}]}}\n",
            (
                r"9:\d+: tiers.full.also\[0\]: chooses no column; "
                r"expected a check that has these dtypes and axes"
            ),
            id="part without a column",
        ),
        pytest.param(
            BASE
            + "xfail:\n  - {op: torch.sin, raises: E, match: m, reason: r, until: 2020-01-01}\n",
            r"10:60: xfail\[0\].until: expired on 2020-01-01: r; expected the cause to be gone",
            id="expired until",
        ),
        pytest.param(
            BASE + "skip:\n  - {op: torch.sin, reason: r, until: soon}\n",
            r"10:39: skip\[0\].until: 'soon' is not a date; expected YYYY",
            id="no date",
        ),
        pytest.param(
            BASE + "skip:\n  - {op: torch.sin}\n",
            r'10:5: skip\[0\].reason: "reason" is missing; expected `reason: …`',
            id="missing reason",
        ),
        pytest.param(
            BASE + "skip:\n  - {op: torch.sin, reason: ' '}\n",
            r"10:29: skip\[0\].reason: an empty text",
            id="empty reason",
        ),
        pytest.param(
            BASE + "xfail:\n  - {op: torch.sin, reason: r, match: m}\n",
            r'"raises" is missing',
            id="xfail without exception",
        ),
        pytest.param(
            BASE + "xfail:\n  - {op: torch.sin, reason: r, raises: E, match: '('}\n",
            r"'\(' is not a regular expression",
            id="pattern",
        ),
        pytest.param(
            BASE + "exclude:\n  - {op: torch.sin, target: torch, reason: r}\n",
            r'exclude\[0\].target: unknown key "target"',
            id="exclude by what only a run knows",
        ),
        pytest.param(
            BASE + "skip:\n  - {op: torch.sin, target: tosch, reason: r}\n",
            r'target "tosch" is unknown; .*mean "torch"\?',
            id="target",
        ),
        pytest.param(
            BASE + "skip:\n  - {op: torch.sin, device: cudda, reason: r}\n",
            r'device "cudda" is unknown',
            id="device",
        ),
        pytest.param(
            BASE + "skip:\n  - {op: torch.sin, torch: two, reason: r}\n",
            r"'two' is not a version specifier",
            id="version",
        ),
        pytest.param(
            BASE + "skip:\n  - {check: vjq, reason: r}\n",
            r'check "vjq" is unknown; .*did you mean "vjp"\?',
            id="check",
        ),
        pytest.param(
            BASE + "skip:\n  - {check: 'x*', reason: r}\n",
            r'check "x\*" matches nothing',
            id="check glob",
        ),
        pytest.param(
            BASE + "skip:\n  - {family: pointwize, reason: r}\n",
            r'family "pointwize" is unknown; .*"pointwise"\?',
            id="family",
        ),
        pytest.param(
            BASE + "skip:\n  - {axes: {shapes: sttic}, reason: r}\n",
            r'value of axis shapes "sttic" is unknown',
            id="axis value",
        ),
        pytest.param(
            BASE + "skip:\n  - {axes: {shape: static}, reason: r}\n",
            r'unknown axis "shape"; .*did you mean "shapes"\?',
            id="axis",
        ),
        pytest.param(
            BASE.replace("dynamic]", "dynamc]"),
            r'unknown value "dynamc" of axis shapes; .*"dynamic"\?',
            id="axis value of a check",
        ),
        pytest.param(
            BASE.replace("pipeline: vjp", "pipeline: vjp, form: argument_inplace"),
            (
                r'checks.vjp: pipeline "vjp" with form argument_inplace; '
                r"expected one of aot.export, aot.function, aot.saved, trace innermost"
            ),
            id="a form that the stage does not take",
        ),
        pytest.param(
            BASE.replace("against: eager", "against: eagre"),
            r'unknown reference "eagre"; .*"eager"\?',
            id="reference",
        ),
        pytest.param(
            BASE + "    checks: [vpj]\n",
            r'9:14: families.pointwise.checks\[0\]: check "vpj" is unknown',
            id="check of a family",
        ),
        pytest.param(
            BASE + "tiers: {smok: {}}\n",
            r'unknown tier "smok"; .*did you mean "smoke"\?',
            id="tier",
        ),
        pytest.param(
            BASE + "tiers: {full: {reduce: ful}}\n",
            r'unknown reduction "ful"; .*did you mean "full"\?',
            id="reduction",
        ),
        pytest.param(
            BASE.replace("version: 1", "version: 2"),
            r"1:10: version: 2 does not fit; expected 1",
            id="version of the language",
        ),
        pytest.param(
            BASE.replace("version: 1\n", ""),
            r'version: "version" is missing; expected `version: 1`',
            id="no version",
        ),
        pytest.param("version: 1\n", r'families: "families" is missing', id="no families"),
        pytest.param(
            BASE.replace("[torch.sin, torch.mul]", "torch.sin"),
            r"families.pointwise.ops: 'torch.sin' does not fit; expected a list",
            id="word",
        ),
        pytest.param(
            BASE + "tolerance:\n  - {op: torch.sin, reason: r, rtol: '1'}\n",
            r"tolerance\[0\].rtol: '1' does not fit; expected a number",
            id="text for a number",
        ),
        pytest.param(
            BASE + "    timeout: 0\n",
            r"9:14: families.pointwise.timeout: 0.* does not fit",
            id="a limit of no time",
        ),
        pytest.param(
            BASE + "tolerance:\n  - {op: torch.sin, reason: r}\n",
            r"a tolerance of nothing",
            id="tolerance without bounds",
        ),
        pytest.param(
            BASE
            + (
                "skip:\n  - {op: torch.sin, reason: r, name: a}\n"
                "  - {op: torch.mul, reason: r, name: a}\n"
            ),
            r'skip\[1\].name: the name "a" is taken',
            id="entry name twice",
        ),
    ],
)
def test_a_mistake_is_placed_and_explained(mistakes: Mistakes, text: str, message: str) -> None:
    found = mistakes(text)
    assert any(re.search(message, line) for line in found), "\n".join(found)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (BASE.replace("  pointwise:", "  \"x'); import os; ('\":"), "families"),
        (BASE.replace("  pointwise:", "  class:"), "families"),
        (BASE.replace("  pointwise:", "  ../../evil:"), "families"),
        (BASE.replace("  vjp:", '  "vjp(case): pass\\nimport os\\ndef x":'), "checks"),
        (BASE.replace("torch.mul", '{op: "torch.mul\\"); import os; (\\"", samples: a:b}'), "ops"),
        (
            BASE.replace(
                "torch.mul", "{op: a.b, samples: a:b, call: \"__import__('os').system('ls')\"}"
            ),
            "call",
        ),
        (BASE.replace("torch.mul", '{op: a.b, samples: a:b, reference: "a.b;c"}'), "reference"),
        (BASE + 'skip:\n  - {op: torch.sin, reason: r, name: "a\\": evil, \\"b"}\n', "name"),
        (
            BASE + 'xfail:\n  - {op: torch.sin, reason: r, match: m, raises: "E, x=evil()"}\n',
            "raises",
        ),
        (BASE + 'targets: {names: ["a\'b"]}\n', "targets"),
    ],
)
def test_a_name_that_would_inject_code_is_refused(mistakes: Mistakes, text: str, key: str) -> None:
    found = mistakes(text)
    assert any(key in line and ("cannot name" in line or "not a name" in line) for line in found), (
        found
    )


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            "{args: [{shape: [4, -1]}]}",
            r"shape\[1\]: -1 does not fit; expected greater than or equal to 0",
        ),
        ("{args: [{shap: [4]}]}", r'unknown key "shap"; .*did you mean "shape"\?'),
        (
            "{args: [{shape: [4], domain: positiv}]}",
            r"domain: 'positiv' does not fit; expected 'any', 'positive'",
        ),
        (
            "{args: [[{shape: [2], dtype: float46}]]}",
            r'unknown dtype "float46"; .*did you mean "float64"\?',
        ),
        ("{args: [{shape: [2], domain: index}]}", r"domain index without a size"),
        ("{args: [{shape: [2, 3], domain: spd}]}", r"domain spd with shape \[2, 3\]"),
        ("{args: [{shape: [2], low: 2, high: 1}]}", r"low 2.0 is not below high 1.0"),
        ("{arg: []}", r'unknown key "arg"; .*did you mean "args"\?'),
        ('{kwargs: {"a b": 1}}', r"'a b' is not a name"),
    ],
)
def test_a_mistake_in_a_described_sample_is_placed(
    mistakes: Mistakes, sample: str, message: str
) -> None:
    found = mistakes(BASE + f"  mine:\n    ops:\n      - {{op: a.b, samples: [{sample}]}}\n")
    assert any(
        re.search(message, line) and "families.mine.ops[0].samples[0]" in line for line in found
    ), found


def test_every_mistake_is_told_in_one_go_in_the_order_of_the_file(mistakes: Mistakes) -> None:
    found = mistakes("""\
        version: 1
        dtypes: {real: [flaot32, float64]}
        chekcs: {}
        checks:
          vjp: {claim: x., pipeline: vmap . vjpp, against: upstream}
          jvp: {claim: y., pipeline: jvp, against: upstream}
        families:
          one:
            titel: One
            ops: [torch.sin, torch.mull, {op: torch.mul, erors: []}]
        xfail:
          - {op: torch.sin, check: jvp, raises: E, match: m}
          - {op: torch.sin, check: jpv, raises: E, match: m, reason: r}
          - {op: torch.sin, check: jvp, raises: E, match: m, reason: r, until: 2001-01-01}
        """)
    lines = [int(line.split(":")[1]) for line in found]
    assert lines == sorted(lines)
    assert {2, 3, 5, 9, 10, 12, 13, 14} == set(lines)
    assert lines.count(10) == 2


def test_what_was_cut_out_makes_no_second_message(mistakes: Mistakes) -> None:
    """An entry about a check that is itself wrong is not blamed for matching nothing."""
    found = mistakes(
        BASE.replace("pipeline: vjp,", "pipeline: vjq,")
        + "skip:\n  - {check: vjp, op: torch.sin, reason: r}\n"
    )
    assert len(found) == 1
    assert "vjq" in found[0]
