"""Compare every overload of an op with the op: ``out=``, in place, numbers, lists, other names.

``recorded_calls.py`` finds the calls of the dispatcher that an op makes. ``plain_calls.py`` finds
from the schemas the same calls by other names and with other types. ``overload_forms.py`` makes
their forms with buffers and in place, and ``list_forms.py`` those of several tensors at once.
``form_agreement.py`` runs them over a target and compares. The package imports samples, comparisons
and private names of torch. Start with ``form_agreement.py``.
"""

from gen.checks.overloads.form_agreement import assert_forms_agree

__all__ = ["assert_forms_agree"]
