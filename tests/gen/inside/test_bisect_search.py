"""The search among commits asks few of them, and goes around those that cannot be asked.

Inside: gen.commands.bisect. By the command each commit that is asked takes a run of pytest.
"""

import pytest

from gen.commands.bisect import BisectError, search


@pytest.mark.parametrize("first", range(1, 100))
def test_few_commits_are_asked(first: int) -> None:
    asked: list[str] = []

    def fails(commit: str) -> bool:
        asked.append(commit)
        return int(commit) >= first

    assert search([str(number) for number in range(100)], fails) == [str(first)]
    assert len(asked) <= 9  # the ends, and seven halves of 99
    assert len(set(asked)) == len(asked)


def test_commits_that_cannot_be_asked_stay_candidates() -> None:
    answers = {"a": False, "b": False, "c": None, "d": None, "e": True, "f": True}
    assert search(list(answers), answers.get) == ["c", "d", "e"]


@pytest.mark.parametrize("last", [False, None])
def test_the_last_commit_must_fail(last: bool | None) -> None:
    with pytest.raises(BisectError, match="does not fail at --bad"):
        search(["a", "b"], {"a": False, "b": last}.get)


@pytest.mark.parametrize("first", [True, None])
def test_the_first_commit_must_not_fail(first: bool | None) -> None:
    with pytest.raises(BisectError, match="at --good"):
        search(["a", "b"], {"a": first, "b": True}.get)
