"""The database of operators of torch's tests, and its helpers. They are slow to import."""

from __future__ import annotations

import torch
import torch.testing._internal.common_utils
import torch.testing._internal.opinfo.core

opinfo_classes = torch.testing._internal.opinfo.core
"""The classes of the entries of torch's database of operators."""
OpInfo = torch.testing._internal.opinfo.core.OpInfo
"""An entry: an operator and what torch's tests know of it."""
SampleInput = torch.testing._internal.opinfo.core.SampleInput
"""Arguments that an operator takes."""
ErrorInput = torch.testing._internal.opinfo.core.ErrorInput
"""Arguments that an operator refuses."""
common_utils = torch.testing._internal.common_utils
"""The helpers of torch's tests, which seed."""
