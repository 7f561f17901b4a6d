"""Hold what the runtime assumes of the installed torch, as facts that a program can check.

``lock`` has the answers of each supported version to the questions of ``gen/facts/probes.py``, in
files under ``locks``. ``derivatives`` reads torch's own list of derivatives. Records ask both. The
package imports nothing of this project. Start with ``lock.py``.

Importing it refuses a torch that is too old, and warns of one that nobody has run."""

from .lock import check_version

check_version()
