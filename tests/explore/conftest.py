"""A small gallery of the shapes that ship, explored: built once per worker."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from nnnorm import load_shapes, open_embeddings
from nnnorm.evaluation import open_truth
from nnnorm.explore import Session, demo_material, listen, make_app, make_server
from nnnorm.explore.views import Views

N_ITEMS = 200
ATTACK = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">' + "x" * 300


@pytest.fixture(scope="session")
def material():
    shapes, whole = load_shapes(), demo_material()
    captions = list(whole.captions[:N_ITEMS])
    return replace(
        whole,
        gallery=open_embeddings(shapes.gallery[:N_ITEMS], name="gallery"),
        queries=open_embeddings(shapes.queries[: 5 * N_ITEMS], name="queries"),
        references=open_embeddings(shapes.references[:2000], name="references"),
        truth=open_truth(shapes.truth[: 5 * N_ITEMS], n_queries=5 * N_ITEMS, n_gallery=N_ITEMS),
        captions=[ATTACK, *captions[1:]],
        query_captions=[ATTACK, *whole.query_captions[1 : 5 * N_ITEMS]],
        reference_captions=whole.reference_captions[:2000],
        metadata={name: cells[:N_ITEMS] for name, cells in whole.metadata.items()},
    )


@pytest.fixture(scope="session")
def session(material):
    return Session(material)


@pytest.fixture(scope="session")
def views(session):
    return Views(session)


@pytest.fixture(scope="session")
def client(session):
    from starlette.testclient import TestClient

    with TestClient(make_app(session), base_url="http://127.0.0.1:8765") as opened:
        yield opened


@contextmanager
def serving(session):
    """Serve a session as the command does, in a thread, and return its port."""
    opened, server = listen(port=0), make_server(session)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    try:
        yield opened.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
