"""Torch's functions of C that tell something can be asked, all that there are.

Inside: ``runtime.aot.python_state.switches``. A program asks for few of them, and the next torch
may have one that ends the process when it is asked without arguments.
"""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from runtime.aot.python_state import switches

asked = [
    question
    for name in switches._FUNCTIONS
    if switches._tells(name) and not switches._PASSED.search(name)
    for question in switches._questions(name)
]
for _, ask in asked:
    ask()
print(len(asked))
"""


def test_each_function_of_torch_that_tells_something_can_be_asked() -> None:
    # in a process of its own, which a function in C may end
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
