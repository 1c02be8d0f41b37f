import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings

from nnnorm.encoders import load_encoder
from tests import tiny

# Models are built by the tests; a name on the hub must not be looked for in the network.
os.environ["HF_HUB_OFFLINE"] = "1"

# Whoever runs the tests in the background ignores Ctrl-C, and so would the programs they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, and no deadline: machines differ.
settings.register_profile("steady", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("steady")

REAL_DATA = Path(os.environ.get("NNNORM_REAL_DATA", Path(__file__).parents[2] / "shared" / "data"))


# What `make test-fast` leaves out by name: databases, models, the whole demo, long comparisons.
SLOW = (
    "src/nnnorm/demo",
    "src/nnnorm/encoders",
    "src/nnnorm/index",
    "tests/encoders/test_albef.py",
    "tests/means/test_approximate.py",
    "tests/encoders/test_beit3.py",
    "tests/encoders/test_blip_matching.py",
    "tests/cli/test_core.py::test_the_demo",
    "tests/cli/test_cli_encode.py",
    "tests/cli/test_cli_index.py",
    "tests/cli/test_cli_reproduce.py",
    "tests/test_docs.py::test_the_python_of_a_page_runs",
    "tests/reproduce/test_encode.py",
    "tests/means/test_dispatch.py",
    "tests/encoders/test_huggingface.py",
    "tests/encoders/test_images.py",
    "tests/index/",
    "tests/encoders/test_load.py",
    "tests/report/test_plots.py",
    "tests/test_readme.py",
    "tests/test_real_data.py",
    "tests/reproduce/test_run.py",
    "tests/means/test_pruned.py",
    "tests/encoders/test_sentences.py",
    "tests/reproduce/test_standins.py",
    "tests/study/test_sweep.py",
    "tests/study/test_tuning.py",
)


def pytest_ignore_collect(collection_path, config):
    """Importing the slow files alone takes a while."""
    if config.option.markexpr == "not slow":
        here = collection_path.as_posix()
        return any(name in here for name in SLOW if "::" not in name) or None
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def rng():
    return np.random.default_rng(20241112)


@pytest.fixture
def small(rng):
    """A small problem of non-unit vectors with n_queries ≠ n_gallery ≠ n_references."""
    return SimpleNamespace(
        gallery=rng.normal(size=(23, 12)).astype(np.float32) * 0.3,
        references=rng.normal(size=(57, 12)).astype(np.float32) * 0.3,
        queries=rng.normal(size=(11, 12)).astype(np.float32) * 0.3,
        gallery_references=rng.normal(size=(31, 12)).astype(np.float32) * 0.3,
    )


@pytest.fixture(scope="session")
def flickr8k():
    folder = REAL_DATA / "flickr8k"
    if not folder.is_dir():
        pytest.skip(f"the real embeddings are not here ({folder})")
    load = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    captions = {
        split: (5 * load[f"{split}_images"][:, None] + np.arange(5)).ravel()
        for split in ("train", "val", "test")
    }
    return SimpleNamespace(
        image={s: load["image"][load[f"{s}_images"]] for s in captions},
        caption={s: load["caption"][rows] for s, rows in captions.items()},
        coco_caption=load["coco_caption"],
    )


@pytest.fixture(scope="session")
def unsplash500():
    folder = REAL_DATA / "unsplash500"
    if not folder.is_dir():
        pytest.skip(f"the real embeddings are not here ({folder})")
    return SimpleNamespace(image=np.load(folder / "image.npy"), text=np.load(folder / "text.npy"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Path of a tiny model of some kind (tests/tiny.py), built once."""
    import torch

    torch.set_num_threads(1)  # quicker for models this small, and the same bits everywhere
    built = {}

    def path_of(kind):
        if kind not in built:
            built[kind] = tiny.build_any(kind, tmp_path_factory.mktemp(kind))
        return built[kind]

    return path_of


@pytest.fixture(scope="session")
def tiny_encoder(tiny_model):
    """The same, loaded; don't change it."""
    loaded = {}

    def encoder_of(kind):
        if kind not in loaded:
            loaded[kind] = load_encoder(tiny_model(kind), device="cpu")
        return loaded[kind]

    return encoder_of


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return tiny.draw_images(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def sounds(tmp_path_factory):
    return tiny.write_sounds(tmp_path_factory.mktemp("sounds"))
