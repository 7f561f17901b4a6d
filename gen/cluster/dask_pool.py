"""Offer a pool of Dask workers, on this machine or behind a scheduler."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from gen.cluster.coordinator import Lost
from gen.cluster.job import Answer, Group, Job, WrongVersion, resource_of
from gen.cluster.work import release, run_group

__all__ = ["ClusterError", "DaskPool", "connected"]

_GROUPS_PER_UNIT = 2  # one runs, and one waits, so that the worker never idles
_POLL_INTERVAL = 2.0  # seconds between counts of the workers
_CONNECT_TIMEOUT = 5  # seconds for a scheduler to answer
_RESTART_TIMEOUT = 300  # seconds in which a worker of this machine has to come back
_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)
_SETTINGS = {
    # A group whose worker died comes back at once, to be split.
    "distributed.scheduler.allowed-failures": 0,
    # Dask starts a worker again that has died, and gives it up after this time. Its default is
    # 15 s, but a busy machine takes longer to import torch.
    "distributed.deploy.lost-worker-timeout": f"{_RESTART_TIMEOUT}s",
    # Profiles and long logs only take memory, which grows with a long run.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.log-length": 1000,
    "distributed.admin.low-level-log-length": 100,
    "distributed.comm.timeouts.connect": f"{_CONNECT_TIMEOUT}s",
}


class ClusterError(Exception):
    """A run cannot begin or go on. The message says what to do."""


@contextlib.contextmanager
def connected(where: str, device: str) -> Iterator[Any]:
    """Connect a Dask client to workers, and stop those that it starts when the block ends.

    `where` is ``local:N`` for N workers of this machine, or the address of a scheduler. Raises
    ClusterError if `where` is neither, or if no scheduler answers.
    """
    try:
        import dask.config
        import distributed
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"--cluster needs Dask's distributed ({error.name} is missing): pip install distributed"
        ) from error
    # The settings apply to this run alone. Dask restores the former ones at the end of the block.
    with dask.config.set(_SETTINGS), contextlib.ExitStack() as closing:
        scheduler: object = where
        kind, _, number = where.partition(":")
        if kind == "local":
            if not (number.isdecimal() and int(number) > 0):
                raise ClusterError(
                    f"--cluster {where}: expected local:N with N workers, as local:2, "
                    "or an address, as tcp://host:8786"
                )
            scheduler = closing.enter_context(
                distributed.LocalCluster(
                    n_workers=int(number),
                    threads_per_worker=1,
                    memory_limit=None,
                    resources={resource_of(device): 1},
                    dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )
            )
        elif "://" not in where:
            raise ClusterError(
                f"--cluster {where}: expected local:N, "
                "or an address of a scheduler, as tcp://host:8786"
            )
        try:
            client = closing.enter_context(
                distributed.Client(scheduler, timeout=_CONNECT_TIMEOUT, set_as_default=False)
            )
        except (OSError, ValueError) as error:
            hint = (
                f"no scheduler answers within {_CONNECT_TIMEOUT} s; "
                "is `dask scheduler` running there, and is the port open?"
            )
            raise ClusterError(f"--cluster {where}: {hint} ({error})") from error
        # Dask logs each lost connection, but lost workers are a part of a run.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        yield client


class DaskPool:
    """Run groups as tasks that need one unit of the device's resource.

    A worker runs as many groups at a time as it has units.
    """

    def __init__(self, client: Any, job: Job) -> None:
        self.workers = 0  # workers with a unit of the resource, at the last count
        self.dashboard = str(client.dashboard_link)
        if find_spec("bokeh") is None:  # Dask needs it to show the dashboard
            self.dashboard += " (with bokeh installed)"
        self._client = client
        self._job = job
        self._resource = resource_of(job.device)
        # Dask's thread puts a key and its future here as soon as the future is done.
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._futures: dict[int, Any] = {}  # of the groups that are not done, by key
        self._units = 0  # of the resource, of all workers together
        self._last_count = -_POLL_INTERVAL  # the time of the last count: now is late enough
        self._is_local = client.cluster is not None
        self._last_worker_seen = time.monotonic()

    def require_resource(self) -> None:
        """Raise ClusterError if there are workers, and none of them is for the device.

        If there are no workers at all, the run waits for some.
        """
        self._count_workers()
        if not self.workers and self._client.scheduler_info()["workers"]:
            how = f'dask worker ADDRESS --nthreads 1 --resources "{self._resource}=1"'
            raise ClusterError(
                f"no worker offers the resource {self._resource}, "
                f"which cells on {self._job.device} need; start some with: {how}"
            )

    def room(self) -> int:
        self._count_workers()
        # One group waits at the scheduler even if no worker is there yet.
        return max(1, _GROUPS_PER_UNIT * self._units)

    def submit(self, key: int, group: Group) -> None:
        name = f"cells-{self._job.name}-{key}"
        future = self._client.submit(
            run_group, self._job, group, key=name, resources={self._resource: 1}, pure=False
        )
        self._futures[key] = future
        future.add_done_callback(lambda done: self._done.put((key, done)))

    def finished(self, seconds: float) -> Sequence[tuple[int, Answer | Lost]]:
        """Wait for a group that is done, and return the results of all that are.

        The list is empty if none is done within `seconds`.
        """
        results: list[tuple[int, Answer | Lost]] = []
        with contextlib.suppress(queue.Empty):
            results.append(self._result(*self._done.get(timeout=seconds)))
            while True:
                results.append(self._result(*self._done.get_nowait()))
        return results

    def close(self) -> None:
        """Cancel the groups that are not done, and end the processes that wait for more."""
        # Workers or the scheduler may be gone. Then there is nothing to cancel.
        with contextlib.suppress(Exception):
            self._client.cancel(list(self._futures.values()), force=True)
            self._client.run(release, self._job)

    def _result(self, key: int, future: Any) -> tuple[int, Answer | Lost]:
        """Return the answer of a group, or Lost if its worker died.

        Raises ClusterError for an error that every other worker would raise too.
        """
        from distributed.scheduler import KilledWorker

        del self._futures[key]
        try:
            answer: Answer = future.result()
        # The group goes back to the coordinator, which looks for the cell that killed the worker.
        except KilledWorker as error:
            return key, Lost(str(error.last_worker.address))
        except WrongVersion as error:
            raise ClusterError(
                f"{error}; give every worker the same commit and environment"
            ) from error
        except ModuleNotFoundError as error:
            raise ClusterError(
                f"a worker cannot import {error.name}; "
                "start it in a checkout of this commit, with its environment"
            ) from error
        except (*_CANCELLED, OSError) as error:
            raise ClusterError("the scheduler is gone") from error
        except Exception as error:
            raise ClusterError(f"a worker failed ({type(error).__name__}: {error})") from error
        return key, answer

    def _count_workers(self) -> None:
        """Count the workers for this job's device, unless the last count is recent."""
        now = time.monotonic()
        if now - self._last_count < _POLL_INTERVAL:
            return
        self._last_count = now
        try:
            workers = self._client.scheduler_info()["workers"].values()
        except (OSError, asyncio.CancelledError) as error:
            raise ClusterError(f"the scheduler is gone ({error})") from error
        units = [int(worker["resources"].get(self._resource, 0)) for worker in workers]
        self.workers = sum(count > 0 for count in units)
        self._units = sum(units)
        if self.workers:
            self._last_worker_seen = now
        # New workers may come to a scheduler at an address, but nobody starts one on this machine.
        elif self._is_local and now - self._last_worker_seen > _RESTART_TIMEOUT:
            raise ClusterError(
                "the workers of this machine have died, "
                f"and none came back within {_RESTART_TIMEOUT} s"
            )
