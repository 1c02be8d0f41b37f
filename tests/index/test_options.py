"""One dataclass per engine: keyword arguments, URLs, messages, docstrings and pages follow it."""

import dataclasses
import inspect
from pathlib import Path

import pytest

import nnnorm
from nnnorm.index import ENGINES, open_store
from nnnorm.index.options import options_table
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.pgvector import PgvectorStore
from nnnorm.index.stores.qdrant import QdrantStore
from nnnorm.index.urls import load_engine

PAGES = Path(__file__).parents[2] / "docs" / "engines"
each_engine = pytest.mark.parametrize("scheme", ENGINES)


@each_engine
def test_a_url_and_keyword_arguments_give_the_same_options(scheme):
    kind = load_engine(scheme)
    defaults = dataclasses.asdict(kind.options_type())
    query = "&".join(f"{name}={str(value).lower()}" for name, value in defaults.items() if value)
    by_url = open_store(f"{scheme}:photos.db?{query}")
    assert by_url.options == kind("photos.db", **defaults).options == kind.options_type()


@each_engine
def test_a_signature_and_a_docstring_name_every_option_and_its_default(scheme):
    kind = load_engine(scheme)
    parameters = inspect.signature(kind).parameters
    for field in dataclasses.fields(kind.options_type):
        assert parameters[field.name].default == field.default
        assert f"\n{field.name} : " in inspect.getdoc(kind)
        assert field.metadata["text"].endswith(".")


@each_engine
def test_the_page_of_an_engine_lists_its_options(scheme):
    module = ENGINES[scheme][0].rpartition(".")[2]
    page = PAGES / f"{module.replace('_', '-')}.md"
    assert options_table(load_engine(scheme).options_type) in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("faiss:a?kind=tree", "kind must be one of flat, ivf, hnsw, sq, pq; got 'tree'"),
        ("faiss:a?ef=0", "ef must be a whole number from 1 to 1048576; got 0"),
        ("faiss:a?ef=many", "ef must be a whole number from 1 to 1048576; got 'many'"),
        ("faiss:a?probes=-1", "probes must be a whole number from 0 to 1048576; got -1"),
        ("qdrant://box/a?https=perhaps", "https must be true or false; got 'perhaps'"),
        ("faiss:a?kinds=hnsw", "faiss has no option 'kinds'; did you mean 'kind'?"),
        ("sqlite:a?colour=red", "sqlite-vec has no option 'colour'; it has table"),
    ],
)
def test_a_wrong_option_of_a_url_is_one_sentence(url, sentence):
    with pytest.raises(nnnorm.NNNormError) as error:
        open_store(url)
    assert sentence in str(error.value)


def test_a_wrong_option_in_python_is_the_same_sentence():
    with pytest.raises(TypeError, match="faiss has no option 'kinds'; did you mean 'kind'"):
        FaissStore("a", kinds="hnsw")
    with pytest.raises(
        nnnorm.NNNormError, match="ef must be a whole number from 1 to 1048576; got True"
    ):
        FaissStore("a", ef=True)
    with pytest.raises(nnnorm.NNNormError, match="table must be text; got 7"):
        PgvectorStore("", table=7)
    with pytest.raises(TypeError, match="takes a place and collection by position; got 3 arg"):
        QdrantStore("folder", "photos", "hnsw")


def test_a_collection_is_named_by_position_by_name_or_by_the_path_of_a_server():
    for store in (
        QdrantStore("http://box:6333", "photos"),
        QdrantStore("http://box:6333", collection="photos"),
        QdrantStore("//box:6333/photos"),
        QdrantStore("//box:6333/others", collection="photos"),
    ):
        assert store.name == "qdrant collection photos of http://box:6333"
    assert QdrantStore("folder").name == "qdrant collection items of folder"


def test_options_can_not_change_behind_the_back_of_a_store():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FaissStore("a").options.kind = "hnsw"
