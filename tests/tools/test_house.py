"""The figures of small trees are known. Each list and each error of the command is shown once."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tools.house import main

PRICE = '''\
"""Prices of a shop."""

from typing import Any

from shop.tax import rate


class Basket:
    pass


def price(count: int, member: Any = None) -> float:
    """In cents.

    Members pay less.
    """
    if count > 10 and member:  # both
        return count * (80 if count > 100 else 90 if count > 50 else 95)
    return sum([rate() for _ in range(count) if count > 1])
'''
TAX = """\
class Basket: ...


def rate() -> float:
    def doubled(x: float) -> float:
        while x < 1:
            x *= 2
        return x

    return doubled(0.2)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder from which the command starts."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def shop(here: Path) -> Path:
    write(here, {"shop/price.py": PRICE, "shop/tax.py": TAX, "shop/__init__.py": ""})
    return here / "shop"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


# ---------------------------------------------------------------------------------- the table


@pytest.mark.usefixtures("shop")
def test_the_table_has_the_figures_of_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    *headings, row = printed(capsys, "shop")
    assert row.split() == [
        "shop",
        "2",  # files: __init__.py is empty
        "29",  # lines
        "18",  # statements, two docstrings among them
        "0.53",  # complexity per line: 7 of price in 8, 1 of rate in 7, 2 of doubled in 4
        "0.0",  # of the functions are over 10
        "%",
        "0",  # over 15
        "7",  # largest
        "69.0",  # 2 conditional expressions in 29 lines
        "1",  # with another one inside
        "34",  # 1 comprehension in 29 lines
        "34",  # 1 Any
        "4.0",  # letters per name
        "0.0",  # of the lines are wide
        "%",
        "3.4",  # 1 comment
        "2.0",  # docstrings of 1 and 3 lines
    ]
    assert len({len(line) for line in [headings[-1], row]}) == 1, "the columns are aligned"


@pytest.mark.usefixtures("shop")
def test_the_table_has_a_row_for_each_folder_in_the_order_of_the_request(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    write(here, {"bank/account.py": "balance = 0\n"})
    rows = printed(capsys, "shop", "bank", "shop/tax.py")[-3:]
    assert [row.split()[:3] for row in rows] == [
        ["shop", "2", "29"],
        ["bank", "1", "1"],
        ["shop/tax.py", "1", "10"],
    ]


def test_a_folder_without_functions_and_names_has_zeros(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    write(here, {"bank/__init__.py": "\n"})
    row = printed(capsys, "bank")[-1].split()
    assert {float(text) for text in row[1:] if text != "%"} == {0.0}


def test_wide_lines_count_from_101_columns_on(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    write(here, {"bank/account.py": f"#{'x' * 99}\n#{'x' * 100}\n"})
    assert "50.0 %" in printed(capsys, "bank")[-1]


def test_without_arguments_the_folders_of_the_project_are_shown(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    write(here, {"gen/cli.py": "a = 1\n", "runtime/errors.py": "b = 1\n", "docs/conf.py": "c = 1"})
    assert [row.split()[0] for row in printed(capsys)[-2:]] == ["runtime", "gen"]


# ------------------------------------------------------------------------------------ --worst


@pytest.mark.parametrize(
    ("body", "complexity"),
    [
        ("return x", 1),
        ("return 1 if x else 2", 2),
        ("return x and x > 0 or x", 3),
        ("return [a for a in x if a if a > 1]", 4),
        ("assert x", 2),
        ("for _ in x: pass", 2),
        ("try: x()\nexcept ValueError: pass\nexcept TypeError: pass", 3),
        ("match x:\n    case 1: pass\n    case _: pass", 3),
        ("with x: pass", 1),
        ("return lambda: 1 if x else 2", 2),
        ("class A:\n    y = 1 if x else 2", 1),
    ],
)
def test_complexity_counts_branches(
    capsys: pytest.CaptureFixture[str], here: Path, body: str, complexity: int
) -> None:
    write(here, {"bank/account.py": f"def f(x):\n{textwrap.indent(body, '    ')}\n"})
    assert printed(capsys, "bank", "--worst", "1")[0].split()[0] == str(complexity)


@pytest.mark.usefixtures("shop")
def test_worst_lists_the_most_complex_functions_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    everything = ["   7  shop/price.py:12 price", "   2  shop/tax.py:5 doubled"]
    assert printed(capsys, "shop", "--worst", "2") == everything
    assert printed(capsys, "shop", "--worst", "9") == [*everything, "   1  shop/tax.py:4 rate"]


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_worst_wants_a_number_of_rows(capsys: pytest.CaptureFixture[str], number: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--worst", number])
    assert f"'{number}' is no number of rows. Give 1 or more." in capsys.readouterr().err


# -------------------------------------------------------------------------------- --fragments


@pytest.mark.usefixtures("shop")
def test_fragments_are_short_modules_with_one_importer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed(capsys, "shop", "--fragments") == [
        "  10  shop.tax, imported by shop.price",
        "fragments: 1",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "import shop.tax",
        "from shop import tax",
        "from shop.tax import rate",
        "from . import tax",
        "from .tax import rate",
        "from ..shop import tax",
        "def f():\n    from .tax import rate",
    ],
)
def test_every_form_of_import_is_seen(
    capsys: pytest.CaptureFixture[str], here: Path, line: str
) -> None:
    write(here, {"shop/tax.py": TAX, "shop/price.py": line + "\n"})
    assert printed(capsys, "shop", "--fragments")[-1] == "fragments: 1"


def test_the_init_file_of_a_package_is_an_importer(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    write(here, {"shop/__init__.py": "from .tax import rate\n", "shop/tax.py": TAX})
    assert printed(capsys, "shop", "--fragments")[0] == "  10  shop.tax, imported by shop"


@pytest.mark.parametrize(
    "files",
    [
        {"shop/refund.py": "from shop.tax import rate\n"},  # a second importer
        {"shop/tax.py": TAX + "\n" * 81},  # 91 lines
        {"shop/price.py": "price = 1\n"},  # no importer
        {"shop/price.py": "price = 1\n", "shop/tax.py": "import shop.tax\n"},  # itself
    ],
    ids=["two importers", "long", "no importer", "imports itself"],
)
@pytest.mark.usefixtures("shop")
def test_other_modules_are_no_fragments(
    capsys: pytest.CaptureFixture[str], here: Path, files: dict[str, str]
) -> None:
    write(here, files)
    assert printed(capsys, "shop", "--fragments") == ["fragments: 0"]


def test_fragments_outside_the_folder_that_one_starts_from_have_no_import_name(
    capsys: pytest.CaptureFixture[str], shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = shop.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    text = refused(capsys, "../shop", "--fragments")
    assert (
        f"../shop/price.py: this is not below {elsewhere}, so its import name is unknown." in text
    )


# ---------------------------------------------------------------------- --names and --folders


def test_names_of_classes_and_files_that_repeat(
    capsys: pytest.CaptureFixture[str], shop: Path
) -> None:
    inside = "def f():\n    class Coin: ...\n"
    write(shop, {"old/tax.py": inside, "new/tax.py": inside, "old/__init__.py": "a = 1\n"})
    assert printed(capsys, "shop", "--names") == [
        "   2  class Basket: shop/price.py, shop/tax.py",
        "class names that repeat: 1",
        "   3  file tax.py: shop/new/tax.py, shop/old/tax.py, shop/tax.py",
        "file names that repeat: 1",
    ]


def test_a_file_below_two_of_the_folders_is_one_file(
    capsys: pytest.CaptureFixture[str], shop: Path
) -> None:
    write(shop, {"old/duty.py": TAX})
    assert printed(capsys, "shop", "shop/old", "--names")[-1] == "file names that repeat: 0"


def test_folders_are_listed_by_their_number_of_modules(
    capsys: pytest.CaptureFixture[str], shop: Path
) -> None:
    write(shop, {"old/tax.py": TAX, "new/tax.py": TAX, "old/__init__.py": "a = 1\n"})
    assert printed(capsys, "shop", "--folders") == [
        "   2  shop",
        "   1  shop/new",
        "   1  shop/old",
    ]


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("arguments", [[], ["--worst", "3"], ["--names"], ["--folders"]])
def test_a_folder_that_is_not_there(
    capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str]
) -> None:
    write(here, {"shop/tax.py": TAX})
    text = refused(capsys, "shop", "shopp", *arguments)
    assert text == "house: shopp: there is no such folder. Name a folder or a file of Python.\n"


def test_a_folder_without_python(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    write(here, {"docs/index.md": "# Shop\n"})
    text = refused(capsys, "docs")
    assert text == "house: docs: the folder has no Python files. Name one that has some.\n"


def test_a_file_that_does_not_parse(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    write(here, {"shop/tax.py": "rate = 1\nif rate\n"})
    assert refused(capsys, "shop") == "house: shop/tax.py:2: this does not parse: expected ':'.\n"


def test_a_file_that_is_not_utf_8(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    write(here, {"shop/tax.py": ""})
    (here / "shop/tax.py").write_bytes(b"# \xff\n")
    assert "house: shop/tax.py: this is not Python source: 'utf-8'" in refused(capsys, "shop")


@pytest.mark.usefixtures("here")
def test_a_place_without_any_folder_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys)
    assert text.startswith("house: none of runtime, gen, ")
    assert text.endswith(" is here. Start from the root, or name a folder.\n")


def test_help_shows_every_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(option in text for option in ["--worst N", "--fragments", "--names", "--folders"])
