import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests import tiny

REAL_DATA = Path(os.environ.get("NNNORM_REAL_DATA", Path(__file__).parents[2] / "shared" / "data"))


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
    from nnnorm.encoders import load_encoder

    loaded = {}

    def encoder_of(kind):
        if kind not in loaded and kind in ("albef", "beit3"):
            from reproduction.encode import load_model

            loaded[kind] = load_model(str(tiny_model(kind)), device="cpu")
        elif kind not in loaded:
            loaded[kind] = load_encoder(tiny_model(kind), device="cpu")
        return loaded[kind]

    return encoder_of


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """`nnnorm demo`, run once: what it tells, its figures, and the folder that it writes to."""
    import nnnorm.demo
    from tests.command import run

    folder, kept = tmp_path_factory.mktemp("demo") / "new" / "folder", []
    run_demo = nnnorm.demo.run_demo

    def run_and_keep(*arguments, **options):
        kept.append(run_demo(*arguments, **options))
        return kept[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nnnorm.demo, "run_demo", run_and_keep)
        told = run("demo", "--output", folder)
    assert told.exit_code == 0, told.output
    return SimpleNamespace(told=told.stdout, figures=kept[0], folder=folder)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return tiny.draw_images(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def sounds(tmp_path_factory):
    return tiny.write_sounds(tmp_path_factory.mktemp("sounds"))
