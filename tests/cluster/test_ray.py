"""Parts on a Ray of two workers: the same bias, whatever is lost on the way."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from nnnorm import CSLS, NNNormError
from nnnorm.cluster import fit_on_ray, settle
from tests.cluster.cases import (
    CASES,
    GALLERY,
    REFERENCES,
    assert_same_bias,
    rows,
    write_shards,
)

ray = pytest.importorskip("ray", reason="needs ray: pip install 'nnnorm[ray]'")
pytestmark = pytest.mark.slow
SOLVERS = ("torch", "cuda")  # torch takes seconds to load, in every worker


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


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes on this machine, of which nothing is left afterwards."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        started = ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=100 * 2**20,
        )
        session = started.address_info["session_dir"]
        assert processes_of(session)
        yield started.address_info["gcs_address"]
        ray.shutdown()
    deadline = time.monotonic() + 60
    while processes_of(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(session) == []


@pytest.fixture
def gallery(tmp_path):
    return write_shards(tmp_path / "img_emb")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A gallery and a bank that keep two workers busy for a few seconds."""
    folder = tmp_path_factory.mktemp("large")
    np.save(folder / "gallery.npy", np.tile(rows(8_000, 5), 4))
    np.save(folder / "references.npy", np.tile(rows(16_000, 6), 4))
    return folder


def test_every_method_and_solver_gives_the_bias_of_one_process(cluster, gallery, tmp_path):
    for name, case in CASES.items():
        if name in SOLVERS:
            continue
        method, references, options = case
        job = settle(gallery, references, method, folder=tmp_path / name, **options)
        whole = method.fit(GALLERY, references, **options)
        assert_same_bias(fit_on_ray(job, 3), whole)


def test_a_worker_that_is_killed_changes_nothing_but_the_time(cluster, large, tmp_path):
    paths = large / "gallery.npy", large / "references.npy"
    options = {"duplicates": "keep"}
    job = settle(*paths, CSLS(9), folder=tmp_path / "parts", **options)
    killed = []

    def kill_one():
        while not killed:
            for number in processes_of("ray::nnnorm"):
                os.kill(number, signal.SIGKILL)
                killed.append(number)
                return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    bias = fit_on_ray(job, 6)
    killer.join()
    assert killed
    assert_same_bias(bias, CSLS(9).fit(*paths, **options))


DRIVER = """
import sys, time
from nnnorm import CSLS
from nnnorm.cluster import fit_on_ray, settle
gallery, references, folder, address = sys.argv[1:]
job = settle(gallery, references, CSLS(9), folder=folder, duplicates="keep")
def wait_to_be_killed(done, total):
    if done == 2000:
        print("two parts are written", flush=True)
        time.sleep(600)
fit_on_ray(job, 8, address=address, progress=wait_to_be_killed)
"""


def test_a_driver_that_is_killed_is_resumed_with_what_is_missing(cluster, large, tmp_path):
    paths = large / "gallery.npy", large / "references.npy"
    folder = tmp_path / "parts"
    command = [sys.executable, "-c", DRIVER, *paths, folder, cluster]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        assert driver.stdout.readline() == b"two parts are written\n"
        driver.kill()
    done = {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    job = settle(*paths, CSLS(9), folder=folder, duplicates="keep")
    counted = []
    bias = fit_on_ray(job, progress=lambda done, total: counted.append(done))
    assert (len(done), len(counted)) == (2, 6)
    assert all((folder / name).stat().st_mtime_ns == when for name, when in done.items())
    assert_same_bias(bias, CSLS(9).fit(*paths, duplicates="keep"))


def test_errors_of_workers_arrive_as_sentences(cluster, gallery, tmp_path):
    job = settle(gallery, REFERENCES, CSLS(5), folder=tmp_path / "parts")
    np.save(gallery / "img_emb_2.npy", rows(281, 7))
    with pytest.raises(
        NNNormError, match=r"has changed since the job .* \(on a worker, shard [567]/7"
    ):
        fit_on_ray(job, 7)
    assert len(job.missing(7)) < 7
    with pytest.raises(NNNormError, match="a task asks for 64 cores, and the cluster has 2"):
        fit_on_ray(job, 7, num_cpus=64)
    with pytest.raises(NNNormError, match="a task asks for 1 GPUs, and the cluster has 0"):
        fit_on_ray(job, 7, num_gpus=1)
    in_memory = settle(GALLERY, REFERENCES, CSLS(5), folder=tmp_path / "other")
    with pytest.raises(NNNormError, match="give it as a path or a URL that all of them can read"):
        fit_on_ray(in_memory, 2)


WITHOUT = """
import sys, ray
from nnnorm import CSLS, NNNormError
from nnnorm.cluster import fit_on_ray, settle
gallery, references, folder, address, broken = sys.argv[1:]
job = settle(gallery, references, CSLS(9), folder=folder, duplicates="keep")
there = {"env_vars": {"PYTHONPATH": broken}}
ray.init(address, runtime_env=there, log_to_driver=False, logging_level="error")
try:
    fit_on_ray(job, 2)
except NNNormError as error:
    print(error)
"""


def test_a_worker_without_the_package_is_explained(cluster, large, tmp_path):
    (tmp_path / "broken" / "nnnorm").mkdir(parents=True)
    absent = "raise ModuleNotFoundError(\"No module named 'nnnorm'\", name='nnnorm')"
    (tmp_path / "broken" / "nnnorm" / "__init__.py").write_text(absent)
    places = large / "gallery.npy", large / "references.npy", tmp_path / "parts", cluster
    command = [sys.executable, "-c", WITHOUT, *places, tmp_path / "broken"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    words = "a worker lacks a library (No module named 'nnnorm'); install nnnorm with the same"
    assert done.stdout.startswith(words)
