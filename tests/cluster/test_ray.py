"""Parts on a Ray of two workers: the same bias, whatever is lost on the way.

A Ray takes seconds to start, and tests of one file may run in several processes. So one test starts
it, and the checks below share it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from nnnorm import CSLS, NNNormError
from nnnorm.cluster import fit_on_ray, settle
from tests.cluster.cases import CASES, GALLERY, REFERENCES, assert_same_bias, rows, write_shards

ray = pytest.importorskip("ray", reason="needs ray: pip install 'nnnorm[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc"),
]
KEEP = {"duplicates": "keep"}


def processes_of(text):
    """Numbers of the processes whose command names something."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_text().replace("\0", " "):
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


@contextmanager
def two_workers():
    """A Ray on this machine, of which no process is left afterwards; its address."""
    started = ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=100 * 2**20,
    )
    session = started.address_info["session_dir"]
    try:
        assert processes_of(session)
        yield started.address_info["gcs_address"]
    finally:
        ray.shutdown()
    deadline = time.monotonic() + 60
    while processes_of(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(session) == []


def test_a_bias_is_the_same_on_ray_whatever_is_lost_on_the_way(tmp_path, monkeypatch):
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")
    np.save(tmp_path / "gallery.npy", np.tile(rows(8_000, 5), 4))
    np.save(tmp_path / "references.npy", np.tile(rows(16_000, 6), 4))
    paths = tmp_path / "gallery.npy", tmp_path / "references.npy"
    right = CSLS(9).fit(*paths, **KEEP)
    with two_workers() as address:
        every_method_and_solver_gives_the_bias_of_one_process(tmp_path)
        a_worker_that_is_killed_changes_nothing_but_the_time(paths, right, tmp_path)
        a_driver_that_is_killed_is_resumed_with_what_is_missing(paths, right, tmp_path, address)
        errors_of_workers_arrive_as_sentences(tmp_path)


def every_method_and_solver_gives_the_bias_of_one_process(folder):
    gallery = write_shards(folder / "img_emb")
    for name, case in CASES.items():
        if name == "torch":  # which takes seconds to load, in every worker
            continue
        method, references, options = case
        job = settle(gallery, references, method, folder=folder / name, **options)
        assert_same_bias(fit_on_ray(job, 3), method.fit(GALLERY, references, **options))


def a_worker_that_is_killed_changes_nothing_but_the_time(paths, right, folder):
    job = settle(*paths, CSLS(9), folder=folder / "killed", **KEEP)
    # What is in the object store is read from there, and not copied.
    assert not ray.get(ray.put(job)).bank.rows(0, 1).flags.writeable
    killed = []

    def kill_one():
        while not killed:
            for number in processes_of("ray::nnnorm")[:1]:
                os.kill(number, signal.SIGKILL)
                killed.append(number)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    bias = fit_on_ray(job, 6)
    killer.join()
    assert_same_bias(bias, right)


DRIVER = """
import sys, time, ray
from nnnorm import CSLS, NNNormError
from nnnorm.cluster import fit_on_ray, settle
gallery, references, folder, address, broken = sys.argv[1:]
job = settle(gallery, references, CSLS(9), folder=folder, duplicates="keep")
without = {"env_vars": {"PYTHONPATH": broken}}
ray.init(address, runtime_env=without, log_to_driver=False, logging_level="error")
try:
    fit_on_ray(job, 8)
except NNNormError as error:
    print(error, flush=True)
ray.shutdown()
def wait_to_be_killed(done, total):
    if done == 2000:
        print("two parts are written", flush=True)
        time.sleep(600)
fit_on_ray(job, 8, address=address, progress=wait_to_be_killed)
"""


def a_driver_that_is_killed_is_resumed_with_what_is_missing(paths, right, folder, address):
    """Before that, its workers lack the package, which is said and changes nothing."""
    parts, broken = folder / "resumed", folder / "broken"
    (broken / "nnnorm").mkdir(parents=True)
    absent = "raise ModuleNotFoundError(\"No module named 'nnnorm'\", name='nnnorm')"
    (broken / "nnnorm" / "__init__.py").write_text(absent)
    command = [sys.executable, "-c", DRIVER, *paths, parts, address, broken]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        words = "a worker lacks a library (No module named 'nnnorm'); install nnnorm with the same"
        assert driver.stdout.readline().startswith(words)
        assert driver.stdout.readline() == "two parts are written\n"
        driver.kill()
    done = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    counted = []
    job = settle(*paths, CSLS(9), folder=parts, **KEEP)
    bias = fit_on_ray(job, progress=lambda done, total: counted.append(done))
    assert (len(done), len(counted)) == (2, 6)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert_same_bias(bias, right)


def errors_of_workers_arrive_as_sentences(folder):
    gallery = write_shards(folder / "other_emb")
    job = settle(gallery, REFERENCES, CSLS(5), folder=folder / "changed")
    np.save(gallery / "img_emb_2.npy", rows(281, 7))
    with pytest.raises(NNNormError, match=r"has changed since .* \(on a worker, shard [567]/7"):
        fit_on_ray(job, 7)
    assert len(job.missing(7)) < 7
    with pytest.raises(NNNormError, match=r"a task asks for 64 cores, and no node .* more than 2"):
        fit_on_ray(job, 7, num_cpus=64)
    with pytest.raises(NNNormError, match=r"a task asks for 1 GPUs, and no node .* more than 0"):
        fit_on_ray(job, 7, num_gpus=1)
    in_memory = settle(GALLERY, REFERENCES, CSLS(5), folder=folder / "in memory")
    with pytest.raises(NNNormError, match="give it as a path or a URL that all of them can read"):
        fit_on_ray(in_memory, 2)
