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

_AHEAD = 2  # groups that a thread of a worker has: one runs, one waits
_EVERY = 2.0  # seconds between looks at the workers
_PATIENCE = 5  # seconds for a scheduler to answer
_RESTART = 300  # seconds in which a worker of this machine has to come back
_GONE = (asyncio.CancelledError, concurrent.futures.CancelledError)
_SETTINGS = {
    # a group whose worker died comes back at once, to be split
    "distributed.scheduler.allowed-failures": 0,
    # A worker that died is started again. Dask gives it up for good after this time, which is 15 s
    # by itself: a busy machine takes longer to import torch.
    "distributed.deploy.lost-worker-timeout": f"{_RESTART}s",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.log-length": 1000,
    "distributed.admin.low-level-log-length": 100,
    "distributed.comm.timeouts.connect": f"{_PATIENCE}s",
}


class ClusterError(Exception):
    """A run cannot begin or go on. The message says what to do."""


@contextlib.contextmanager
def connected(where: str, device: str) -> Iterator[Any]:
    """Connect a Dask client to ``local:N`` workers of this machine, or to the scheduler at an
    address.

    Raises ClusterError if there is none.
    """
    try:
        import dask.config
        import distributed
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"--cluster needs Dask's distributed ({error.name} is missing): pip install distributed"
        ) from error
    # Settings are those of this run alone: they are restored when it is over.
    with dask.config.set(_SETTINGS), contextlib.ExitStack() as closing:
        kind, _, number = where.partition(":")
        if kind == "local":
            if not (number.isdecimal() and int(number) > 0):
                raise ClusterError(
                    f"--cluster {where}: expected local:N with N workers, as local:2, "
                    "or an address, as tcp://host:8786"
                )
            where = closing.enter_context(
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
                distributed.Client(where, timeout=_PATIENCE, set_as_default=False)
            )
        except (OSError, ValueError) as error:
            says = (
                f"no scheduler answers within {_PATIENCE} s; "
                "is `dask scheduler` running there, and is the port open?"
            )
            raise ClusterError(f"--cluster {where}: {says} ({error})") from error
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        yield client


class DaskPool:
    """Run groups as tasks that need one unit of the device's resource.

    A worker runs as many groups at a time as it has units.
    """

    def __init__(self, client: Any, job: Job) -> None:
        self.workers = 0  # that have a unit of the resource, as of the last look
        self.dashboard = str(client.dashboard_link)
        if find_spec("bokeh") is None:  # which Dask needs to show it
            self.dashboard += " (with bokeh installed)"
        self._client = client
        self._job = job
        self._resource = resource_of(job.device)
        # Dask's thread puts a key and its future here, once something came of the group.
        self._came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._futures: dict[int, Any] = {}  # of the groups that are out, by key
        self._units = 0  # of the resource, of all workers together
        self._looked = -_EVERY  # when workers were counted last
        self._is_local = client.cluster is not None
        self._met = time.monotonic()  # when there was a worker last

    def require_resource(self) -> None:
        """Raise ClusterError if there are workers, and none of them is for the device.

        Without any, the run waits for some.
        """
        self._look()
        if not self.workers and self._client.scheduler_info()["workers"]:
            how = f'dask worker ADDRESS --nthreads 1 --resources "{self._resource}=1"'
            raise ClusterError(
                f"no worker offers the resource {self._resource}, "
                f"which cells on {self._job.device} need; start some with: {how}"
            )

    def room(self) -> int:
        self._look()
        return max(1, _AHEAD * self._units)

    def submit(self, key: int, group: Group) -> None:
        name = f"cells-{self._job.name}-{key}"
        future = self._client.submit(
            run_group, self._job, group, key=name, resources={self._resource: 1}, pure=False
        )
        self._futures[key] = future
        future.add_done_callback(lambda done: self._came.put((key, done)))

    def finished(self, seconds: float) -> Sequence[tuple[int, Answer | Lost]]:
        """Return what came of groups: all that is there, once something is."""
        results: list[tuple[int, Answer | Lost]] = []
        with contextlib.suppress(queue.Empty):
            results.append(self._result(*self._came.get(timeout=seconds)))
            while True:
                results.append(self._result(*self._came.get_nowait()))
        return results

    def close(self) -> None:
        """Take back the groups that are out, and let workers end the processes that wait for
        more.
        """
        # Workers or the scheduler may be gone. Then there is nothing to take back.
        with contextlib.suppress(Exception):
            self._client.cancel(list(self._futures.values()), force=True)
            self._client.run(release, self._job)

    def _result(self, key: int, future: Any) -> tuple[int, Answer | Lost]:
        """Return what came of a group. Raises ClusterError where no other worker would do
        better.
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
        except (*_GONE, OSError) as error:
            raise ClusterError("the scheduler is gone") from error
        except Exception as error:
            raise ClusterError(f"a worker failed ({type(error).__name__}: {error})") from error
        return key, answer

    def _look(self) -> None:
        """Count the workers for this job's device."""
        now = time.monotonic()
        if now - self._looked < _EVERY:
            return
        self._looked = now
        try:
            workers = self._client.scheduler_info()["workers"].values()
        except (OSError, asyncio.CancelledError) as error:
            raise ClusterError(f"the scheduler is gone ({error})") from error
        units = [int(worker["resources"].get(self._resource, 0)) for worker in workers]
        self.workers = sum(unit > 0 for unit in units)
        self._units = sum(units)
        if self.workers:
            self._met = now
        elif self._is_local and now - self._met > _RESTART:
            # behind an address others may come; here nobody starts one
            raise ClusterError(
                f"the workers of this machine have died, and none came back within {_RESTART} s"
            )
