"""Parts of a job on a Ray cluster.

The job, with its bank, is put into the object store once, from which all workers of a node read it
without a copy. Each task reads its rows of the gallery and returns their values, a few bytes per
row; the driver writes the parts, so that workers need to see the gallery and nothing else. Tasks of
lost workers are repeated by Ray, and those of a lost driver by the next run, which computes only
the parts that are not in the folder.
"""

import contextlib
import logging
import os
import re
import socket
import warnings
from collections.abc import Iterator
from typing import Any

from nnnorm.bias import Bias
from nnnorm.cluster.job import Job
from nnnorm.cluster.parts import Part
from nnnorm.errors import NNNormError, explain_arguments, first_line, require, warn
from nnnorm.io import Progress, Share
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET

# Per task that can run at once; more would only wait, and hold their results.
_WAITING = 2
# By default so many parts per task that can run at once: little is lost with a worker.
_PARTS_PER_SLOT = 8
# Rows below which a part is not worth a task.
_LEAST_ROWS = 1024
_RETRIES = 5
_REACHED_SECONDS = 5.0
# Of one look for finished tasks, and until it is said that there are none.
_LOOK_SECONDS, _NOTE_SECONDS = 2.0, 60.0
# What Ray takes for an address, apart from those with a host and a port.
_NO_HOSTS = ("local", "auto")
# The beginning of HTTP/2, on which gRPC runs, with empty settings; a server answers with its own.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_MISSING = re.compile(r"No module named '[^']+'|\S+ is not installed and this needs it")
# The job that this worker had last: lists are sorted once, not for every task.
_KEPT: dict[str, Job] = {}


@explain_arguments
def fit_on_ray(
    job: Job,
    n_shares: int | None = None,
    *,
    address: str | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Bias:
    """Compute the parts of a job that are missing on a Ray cluster, and join all of them.

    Parameters
    ----------
    job : Job
        With a gallery that every worker can read under the same path or URL.
    n_shares : int, optional
        Number of parts. By default about eight per task that can run at once, or as many as were
        begun with.
    address : str, optional
        Of the cluster, such as ``"10.0.0.1:6379"``, ``"ray://10.0.0.1:10001"`` or ``"auto"``. By
        default a cluster is started on this machine and stopped afterwards. If this process is
        connected to one already, that is used.
    num_cpus, num_gpus : float
        Of one task; also the number of threads it computes with.
    memory_budget : int
        Bytes that a task uses beyond its inputs and its result.
    progress : callable, optional
        Called with ``(rows done, rows in all)``.

    Returns
    -------
    Bias

    Examples
    --------
    >>> fit_on_ray(Job.load("bias.parts"), address="auto")  # doctest: +SKIP
    Bias(nnn: 100,000,000 items, 9,812,004 references, ...)
    """
    if not isinstance(job.gallery, (str, os.PathLike)):
        raise NNNormError(
            "workers of a cluster read the gallery themselves; give it as a path or a URL that all "
            "of them can read"
        )
    if num_cpus <= 0 and num_gpus <= 0:
        raise NNNormError("a task needs a part of a core or of a GPU; got num_cpus=0, num_gpus=0")
    if job.about["solver"] == "cuda" and num_gpus <= 0:
        raise NNNormError("solver cuda computes on a GPU; give every task one (--num-gpus 1)")
    ray = _import_ray()
    with _connected(ray, address):
        slots = _count_slots(ray, num_cpus, num_gpus)
        missing = job.missing(n_shares or _choose_shares(job, slots))
        if missing:
            _run(ray, job, missing, slots, num_cpus, num_gpus, memory_budget, progress)
    return job.merge()


def _run(
    ray: Any,
    job: Job,
    missing: list[Share],
    slots: int,
    num_cpus: float,
    num_gpus: float,
    memory_budget: int,
    progress: Progress | None,
) -> None:
    """Keep a few tasks waiting at any time, and write each part as it arrives."""
    task = ray.remote(_value_share).options(
        num_cpus=num_cpus, num_gpus=num_gpus, max_retries=_RETRIES, name="nnnorm"
    )
    stored = ray.put(job)
    n_rows = {share: share.rows(job.n_gallery) for share in missing}
    n_done = job.n_gallery - sum(last - first for first, last in n_rows.values())
    waiting = list(reversed(missing))
    flying: dict[Any, Share] = {}
    waited, is_told = 0.0, False
    try:
        while waiting or flying:
            while waiting and len(flying) < _WAITING * slots:
                share = waiting.pop()
                flying[task.remote(stored, tuple(share), memory_budget, num_cpus)] = share
            # Not for ever at once, so that Ctrl-C is heard.
            done, _ = ray.wait(list(flying), num_returns=1, timeout=_LOOK_SECONDS)
            waited = 0.0 if done else waited + _LOOK_SECONDS
            if waited >= _NOTE_SECONDS and not is_told:
                is_told = True
                _tell_of_waiting(ray)
            for ref in done:
                share = flying.pop(ref)
                job.save_part(share, _get(ray, ref, share))
                first, last = n_rows[share]
                n_done += last - first
                if progress is not None:
                    progress(n_done, job.n_gallery)
    finally:
        for ref in flying:
            with contextlib.suppress(Exception):  # it may have ended just now
                ray.cancel(ref, force=True)


def _tell_of_waiting(ray: Any) -> None:
    there, free = (
        one.get("CPU", 0) for one in (ray.cluster_resources(), ray.available_resources())
    )
    warn(
        f"no part was finished for a minute, and {there - free:g} of the {there:g} cores of the "
        "cluster are in use; if they are used by others, the tasks wait for them: see ray status"
    )


def _value_share(job: Job, share: tuple[int, int], memory_budget: int, num_cpus: float) -> Part:
    """Value the rows of a share, on a worker."""
    threads = max(1, int(num_cpus))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    key = f"{job.fingerprint} {job.gallery}"
    kept = _KEPT.get(key)
    if kept is None:
        _KEPT.clear()
        kept = _KEPT[key] = job
    first, last = Share(*share).rows(kept.n_gallery)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(threads):
        rows = kept.open_rows(first, last)
        return kept.value(rows, first_row=first, memory_budget=memory_budget)


def _get(ray: Any, ref: Any, share: Share) -> Part:
    """What a task returned, or its error in words."""
    try:
        part: Part = ray.get(ref)
        return part
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NNNormError):
            raise NNNormError(f"{error.cause} (on a worker, shard {share})") from error
        if missing := _MISSING.search(str(error)):
            raise NNNormError(
                f"a worker lacks a library ({missing[0]}); install nnnorm with the same extras in "
                "the environment of every node: pip install 'nnnorm[ray]'"
            ) from error
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise NNNormError(
            f"the worker of shard {share} was lost {_RETRIES + 1} times, probably because it ran "
            "out of memory; use more shards (--shards), a smaller --memory-budget or more "
            "--num-cpus per task. Parts that are done are kept: the same command goes on"
        ) from error
    except ray.exceptions.RayError as error:
        raise NNNormError(
            f"Ray could not compute shard {share} ({first_line(error)}); parts that are done are "
            "kept: the same command goes on"
        ) from error


# --- the cluster ---------------------------------------------------------------------------------


def _import_ray() -> Any:
    # Before the import: it reads them then.
    for name, value in (
        ("RAY_USAGE_STATS_ENABLED", "0"),
        ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
    ):
        os.environ.setdefault(name, value)
    return require("ray", "ray")


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start one; what was started is stopped."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        options["include_dashboard"] = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise _unreachable(address, first_line(error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise where no gRPC server answers, for which Ray would wait for minutes, or for ever."""
    scheme, _, place = address.rpartition("://")
    if address in _NO_HOSTS or scheme not in ("", "ray"):
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise NNNormError(
            f"the address of a Ray cluster has a host and a port, such as "
            f"{'ray://10.0.0.1:10001' if scheme else '10.0.0.1:6379'}, or is auto; got {address}"
        )
    if os.environ.get("RAY_USE_TLS") == "1":
        return  # nothing is said in the clear
    try:
        target = host.strip("[]"), int(port)
        with socket.create_connection(target, timeout=_REACHED_SECONDS) as line:
            line.sendall(_PREFACE)
            answer = line.recv(4)
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error
    if answer[3:] != b"\4":
        raise _unreachable(address, "what answers there is no Ray")


def _unreachable(address: str, reason: str) -> NNNormError:
    return NNNormError(
        f"there is no Ray cluster at {address} ({reason}); check the address and that this machine "
        "may reach it, or leave it out to start Ray here"
    )


def _count_slots(ray: Any, num_cpus: float, num_gpus: float) -> int:
    """Number of tasks that can run at once; a task runs on one node, whatever the others have."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {
        ("CPU", "cores", "--num-cpus"): num_cpus,
        ("GPU", "GPUs", "--num-gpus"): num_gpus,
    }
    wanted = {kind: n for kind, n in wanted.items() if n}
    # A tenth is in 1 ten times, though not in floats.
    slots = sum(
        min(int(node.get(key, 0) / n + 1e-9) for (key, *_), n in wanted.items()) for node in nodes
    )
    if slots:
        return slots
    for (key, what, option), n in wanted.items():
        most = max((node.get(key, 0) for node in nodes), default=0)
        if most < n:
            raise NNNormError(
                f"a task asks for {n:g} {what}, and no node of the cluster has more than {most:g}; "
                f"use a smaller {option}"
            )
    raise NNNormError(
        f"a task asks for {num_cpus:g} cores and {num_gpus:g} GPUs, and no node of the cluster has "
        "both; use a smaller --num-cpus or --num-gpus"
    )


def _choose_shares(job: Job, slots: int) -> int:
    begun = job.begun
    if begun is not None:
        return begun
    return max(1, min(_PARTS_PER_SLOT * slots, job.n_gallery // _LEAST_ROWS))
