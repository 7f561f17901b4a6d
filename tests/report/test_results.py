"""A results file can be read back, whatever happened to the run that wrote it."""

from pathlib import Path

import pytest

from gen.run.results import CellResult, ResultsError, Writer, default_path, read

HEADER = {
    "target": "torch",
    "device": "cpu",
    "tier": "full",
    "torch": "2.13.0",
    "seed": "of the case's id",
}
CELL = CellResult(
    "torch.sin-float64",
    "unary",
    "torch.sin",
    "float64",
    "vjp",
    {},
    "passed",
    "",
    0.01,
    3,
    "test_unary.py::test_vjp[x]",
    loops={"a": 1},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "made/results.jsonl", HEADER)
    writer.cell(CELL)
    writer.close({"complete": True, "wall_seconds": 1.5})
    return writer.path


def test_what_was_written_is_read(path: Path) -> None:
    results = read(path)
    assert results.cells == (CELL,)
    assert (results.header["target"], results.end["wall_seconds"], results.counts()["passed"]) == (
        "torch",
        1.5,
        1,
    )


def test_a_run_that_died_in_the_middle_of_a_line_leaves_the_lines_before(path: Path) -> None:
    path.write_text("\n".join(path.read_text().splitlines()[:2]) + '\n{"event":"ce')
    results = read(path)
    assert len(results.cells) == 1 and not results.end


@pytest.mark.parametrize("line", ["{", '{"event": "cell"}', "[]", '{"event":"cell","id":1}'])
def test_a_broken_line_is_named(path: Path, line: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[1:]]))
    with pytest.raises(ResultsError, match=r"results\.jsonl:2: not a line of a results file"):
        read(path)


def test_an_unknown_outcome_is_refused(path: Path) -> None:
    path.write_text(path.read_text().replace('"passed"', '"perfect"'))
    with pytest.raises(ResultsError, match="'perfect' is not an outcome"):
        read(path)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="run `pytest generated_tests` first"):
        read(tmp_path / "nowhere.jsonl")


def test_a_file_without_header_is_none(path: Path) -> None:
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    with pytest.raises(ResultsError, match="no header line"):
        read(path)


def test_the_default_place_tells_target_device_and_part() -> None:
    assert default_path("torch", "cuda:1").as_posix() == ".cache/matrix/results-torch-cuda_1.jsonl"
    assert (
        default_path("../x", "cpu", "1of2").as_posix()
        == ".cache/matrix/results-.._x-cpu-1of2.jsonl"
    )
