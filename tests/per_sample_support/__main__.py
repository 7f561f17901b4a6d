"""`python -m tests.per_sample_support` writes docs/per_sample_support.md. Where the packages of the
blocks are installed, it writes the page of blocks as well."""

from pathlib import Path

from tests.per_sample_support.blocks import PACKAGES, blocks, installed
from tests.per_sample_support.cases import functions, modules
from tests.per_sample_support.page import BLOCKS_HEAD, BLOCKS_PAGE, PAGE, blocks_section, page
from tests.per_sample_support.trial import try_case

text = page([try_case(case) for case in modules()], [try_case(case) for case in functions()])
Path(PAGE).write_text(text, "utf-8")
versions = {package: installed(package) for package in PACKAGES}
missing = [package for package, version in versions.items() if version is None]
if missing:
    print(f"{BLOCKS_PAGE} stays as it is: {' and '.join(missing)} are not installed")
else:
    text = BLOCKS_HEAD
    for package, version in versions.items():
        text += blocks_section(package, str(version), [try_case(case) for case in blocks(package)])
    Path(BLOCKS_PAGE).write_text(text, "utf-8")
