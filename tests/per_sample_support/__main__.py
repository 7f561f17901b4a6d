"""`python -m tests.per_sample_support` writes docs/per_sample_support.md."""

from pathlib import Path

from tests.per_sample_support.cases import functions, modules
from tests.per_sample_support.page import PAGE, page
from tests.per_sample_support.trial import try_case

Path(PAGE).write_text(
    page([try_case(case) for case in modules()], [try_case(case) for case in functions()]), "utf-8"
)
