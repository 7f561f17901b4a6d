import resource

import pytest

from runtime.trace.stack_room import with_room

CALLS = 500


def leaf() -> None:
    pass


def faults_of_calls(depth: int) -> int:
    """How many pages the system gives the process while a function is called some hundred times, so
    many frames deep."""
    if depth:
        return faults_of_calls(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_at_some_depth_each_call_takes_memory_from_the_system() -> None:
    assert max(map(faults_of_calls, range(200))) >= CALLS


def test_with_room_no_call_does_at_any_depth() -> None:
    assert max(with_room(faults_of_calls)(depth) for depth in range(600)) < CALLS / 10


def test_arguments_results_and_errors_pass() -> None:
    assert with_room(divmod)(7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        with_room(divmod)(1, 0)
