"""Where Ray is not, or not there, this is said at once."""

import socket
import sys
from types import SimpleNamespace

import pytest

from nnnorm import CSLS, NNNormError
from nnnorm.cluster import fit_on_ray, settle
from nnnorm.errors import MissingExtraError, NNNormWarning
from tests.cluster.cases import REFERENCES, write_shards


@pytest.fixture
def job(tmp_path):
    gallery = write_shards(tmp_path / "img_emb")
    return settle(gallery, REFERENCES, CSLS(5), folder=tmp_path / "parts")


def test_without_the_extra_the_command_that_installs_it_is_named(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nnnorm\[ray\]'"):
        fit_on_ray(job)


def test_a_solver_of_gpus_needs_some(tmp_path):
    gallery = write_shards(tmp_path / "img_emb")
    job = settle(gallery, REFERENCES, CSLS(5), folder=tmp_path / "parts", solver="cuda")
    with pytest.raises(NNNormError, match="solver cuda computes on a GPU; give every task one"):
        fit_on_ray(job)


class Nodes:
    """What is used of Ray, with nodes as given; every task is done in this process."""

    exceptions = SimpleNamespace(
        RayTaskError=KeyError, WorkerCrashedError=KeyError, OutOfMemoryError=KeyError
    )

    def __init__(self, *nodes, idle=0):
        self.found = [{"Alive": True, "Resources": node} for node in nodes]
        self.found.append({"Alive": False, "Resources": {"CPU": 64, "GPU": 8}})
        self.idle, self.most = idle, 0

    def nodes(self):
        return self.found

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 4.0}

    def available_resources(self):
        return {"CPU": 1.0}

    def put(self, job):
        return job

    def remote(self, function):
        class Task:
            def options(self, **_):
                return self

            def remote(self, *args):
                return lambda: function(*args)

        return Task()

    def wait(self, refs, *, num_returns, timeout):
        self.most = max(self.most, len(refs))
        assert 0 < timeout < 10
        if self.idle > 0:
            self.idle -= timeout
            return [], refs
        return refs[:1], refs[1:]

    def get(self, ref):
        return ref()

    def cancel(self, ref, force):
        pass


def test_tasks_are_counted_by_what_a_single_node_can_hold(job, monkeypatch):
    ray = Nodes({"CPU": 3.0}, {"CPU": 5.0}, {"memory": 1.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    fit_on_ray(job, 20, num_cpus=2)
    assert ray.most == 2 * 3


@pytest.mark.parametrize(
    ("nodes", "asked", "words"),
    [
        (
            [{"CPU": 1.0}] * 2,
            {"num_cpus": 2},
            "2 cores, and no node .* more than 1;",
        ),
        ([{"CPU": 4.0}], {"num_gpus": 1}, "1 GPUs, and no node of the cluster has more than 0"),
        ([{"CPU": 4.0}, {"GPU": 1.0}], {"num_gpus": 1}, "1 GPUs, and no node of the .* has both"),
        ([], {}, "1 cores, and no node of the cluster has more than 0"),
    ],
)
def test_a_task_that_no_node_can_hold_is_refused(job, monkeypatch, nodes, asked, words):
    monkeypatch.setitem(sys.modules, "ray", Nodes(*nodes))
    with pytest.raises(NNNormError, match=f"a task asks for .*{words}"):
        fit_on_ray(job, **asked)


def test_it_is_said_once_that_nothing_is_finished_for_a_minute(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", Nodes({"CPU": 1.0}, idle=200))
    with pytest.warns(NNNormWarning, match="for a minute, and 3 of the 4 cores") as told:
        fit_on_ray(job, 2)
    assert len(told) == 1


@pytest.mark.parametrize("address", ["ray://box", "ray://box:", "box", "ray://[::1]"])
def test_an_address_without_a_port_is_refused_at_once(job, monkeypatch, address):
    ray = Nodes()
    ray.is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(NNNormError, match=r"has a host and a port, such as .*; got") as caught:
        fit_on_ray(job, address=address)
    assert str(caught.value).endswith(address)


@pytest.mark.slow
def test_an_address_that_no_ray_answers_at_fails_in_seconds(job):
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'nnnorm[ray]'")
    if ray.is_initialized():
        pytest.skip("this process is connected to a Ray of another test")
    with socket.socket() as silent, socket.socket() as closed:
        for one in (silent, closed):
            one.bind(("127.0.0.1", 0))
        silent.listen()
        for scheme, place, reason in (
            ("ray://", closed, "refused"),
            ("", closed, "refused"),
            ("", silent, "timed out"),
        ):
            address = f"{scheme}127.0.0.1:{place.getsockname()[1]}"
            with pytest.raises(NNNormError, match=f"no Ray cluster at {address} .*{reason}.*check"):
                fit_on_ray(job, address=address)
