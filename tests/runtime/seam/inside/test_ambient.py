"""What a helper thread takes along, and what is left of a state.

Inside: ``runtime.seam.ambient.continued`` and the states of threads. A helper thread is one of
the engine's own for deep graphs, and a state that is left over shows in some later program only."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from runtime import checkpoint as ckpt
from runtime.autograd import forward_ad as fw
from runtime.checkpoint.checkpoint import POLICY
from runtime.func.batch import current_fallback_policy, fallback_policy
from runtime.tape.running import FORWARD, STAND_INS


def in_another_thread(look: Callable[[], Any]) -> Any:
    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(look())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def test_a_thread_that_dies_in_a_dual_level_leaves_nothing_behind() -> None:
    in_another_thread(fw.enter_dual_level)
    assert not STAND_INS
    assert FORWARD.dual is None


def test_a_helper_thread_takes_along_all_of_the_state() -> None:
    from runtime.seam.ambient import continued

    seen: list[Any] = []

    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return (
                func(*args, **(kwargs or {})) * 2
                if func is torch.sin
                else func(*args, **(kwargs or {}))
            )

    def look() -> None:
        seen.append(
            (torch.is_grad_enabled(), fw._is_fwd_grad_enabled(), torch.is_inference_mode_enabled())
        )
        seen.append(
            (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), fw.current_level())
        )
        seen.append((torch.sin(torch.ones(())).item(), current_fallback_policy()))

    modes = (
        fw.dual_level(),
        fw._set_fwd_grad_enabled(False),
        torch.inference_mode(),
        torch.autocast("cpu", torch.float16),
        Doubling(),
    )
    with ExitStack() as stack:
        for mode in (*modes, fallback_policy("raise")):
            stack.enter_context(mode)
        look()
        in_another_thread(continued(look))
    in_another_thread(look)
    assert (
        seen[:3]
        == seen[3:6]
        == [
            (False, False, True),
            (True, torch.float16, 0),
            (2 * torch.ones(()).sin().item(), "raise"),
        ]
    )
    assert seen[6:] == [
        (True, True, False),
        (False, torch.bfloat16, -1),
        (torch.ones(()).sin().item(), "warn"),
    ]


@pytest.mark.parametrize(
    "policy", [ckpt.set_checkpoint_early_stop, ckpt.set_checkpoint_debug_enabled]
)
def test_policies_come_back_after_an_error_and_from_nesting(policy: Any) -> None:
    before = POLICY.early_stop, POLICY.debug
    with policy(True):
        within = POLICY.early_stop, POLICY.debug
        assert within != before
        with pytest.raises(ZeroDivisionError), policy(False):
            raise ZeroDivisionError
        assert (POLICY.early_stop, POLICY.debug) == within
    assert (POLICY.early_stop, POLICY.debug) == before == (None, None)
