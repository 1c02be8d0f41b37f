"""A text model without weights, documents, queries, and the expected results."""

import socket
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

import nnnorm

DIM = 16


def embed(text):
    """A vector that depends on the text alone; all have a direction in common, as models' have."""
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    return (rng.normal(size=DIM) + 0.4).tolist()


def embed_all(texts):
    return np.array([embed(text) for text in texts], dtype=np.float32)


@pytest.fixture(params=[True, False], ids=["normalized", "raw"])
def case(request):
    """A corrector with its texts, and later ones that it has not seen."""
    texts = [f"text {n}" for n in range(80)]
    first, references = texts[:60], [f"past question {n}" for n in range(150)]
    corrector = nnnorm.Corrector.fit(
        embed_all(first), embed_all(references), nnnorm.NNN(5, 0.6), normalize=request.param
    )
    return SimpleNamespace(
        corrector=corrector,
        texts=first,
        later=texts[60:],
        queries=[f"question {n}" for n in range(12)],
    )


def search(case, texts, *, k=10, weight=None):
    """The exact search."""
    rows = embed_all(texts)
    return nnnorm.search(
        embed_all(case.queries),
        rows,
        case.corrector.bias_for(rows),
        k=k,
        weight=weight,
        normalize=case.corrector.normalize,
    )


@pytest.fixture
def exact(case):
    """Return the function that ranks texts by the exact search."""

    def rank(texts, **options):
        found = search(case, texts, **options)
        return [[texts[row] for row in hits] for hits in found.indices]

    return rank


def kind_of(text):
    """The metadata of a text; two of three are "common", the others "rare"."""
    return "common" if int(text.split()[-1]) % 3 else "rare"


@pytest.fixture(autouse=True)
def there_is_no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a test of an integration asks for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
