"""Start the recorder in a Python process of a command. Python imports this module by its name.

Another ``sitecustomize`` of the environment is imported after it.
"""

import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_HOOK = "gen.recording.hook"
_ROOT = str(_HERE.parents[_HOOK.count(".")])

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
sys.path.append(_ROOT)  # last: the environment of the command may have no `gen`
importlib.import_module(_HOOK).start(_ROOT)
_OWN = sys.modules.pop(__name__)
if importlib.util.find_spec(__name__) is None:
    sys.modules[__name__] = _OWN
else:
    importlib.import_module(__name__)
