"""`python -m tests.bad_inputs` writes docs/bad_inputs.md."""

from pathlib import Path

from tests.bad_inputs.page import PAGE, page
from tests.bad_inputs.trial import bad_inputs

Path(PAGE).write_text(page(bad_inputs()), "utf-8")
