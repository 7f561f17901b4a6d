"""A trial that takes too much processor time ends its process, and no other one does.

Inside: gen.packages.subprocesses. By the public door such a trial would take 40 seconds of
processor time, since no user can make its limit smaller.
"""

import signal
import subprocess
import sys

PROGRAM = """
import sys
from gen.packages import subprocesses
from gen.packages.trials import Trial

def attempted(data):
    while data["hangs"]:
        pass
    return Trial("quick")

subprocesses._TRY_CPU_SECONDS = 0.2
subprocesses._answer(sys.stdout, attempted)
"""


def test_a_trial_that_never_ends_ends_its_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input='[{"hangs": false}, {"hangs": true}, {"hangs": false}]',
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == -signal.SIGPROF
    ready, answer = done.stdout.splitlines()
    assert ready == "{}"
    assert '"name": "quick"' in answer
