"""Where Ray is not, or not there, this is said at once."""

import socket
import sys

import pytest

from nnnorm import CSLS, NNNormError
from nnnorm.cluster import fit_on_ray, settle
from nnnorm.errors import MissingExtraError
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
