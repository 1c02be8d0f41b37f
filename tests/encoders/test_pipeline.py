"""Items prepared by threads: in order, beside a model elsewhere, in turns with one on the CPU."""

import threading

import numpy as np
import pytest
from PIL import Image

from nnnorm import NNNormError
from nnnorm.encoders import Encoder


class Widths(Encoder):
    """Rows that tell the width of an image, and what ran at the same time."""

    name, dim, modalities = "widths", 2, ("images",)

    def __init__(self, device=None):
        self._device = device
        self.running, self.most_running = 0, 0
        self.began = {width: threading.Event() for width in range(1, 400)}
        self.lock = threading.Lock()

    def prepare_image(self, image):
        with self.lock:
            self.running += 1
        self.began[image.width].set()
        pixels = np.asarray(image.resize((64, 64)))
        with self.lock:
            self.running -= 1
        return image.width, pixels

    def embed_images(self, images):
        self.most_running = max(self.most_running, self.running)
        return np.array([[1.0, width] for width, _ in images])


def draw(n_images):
    return [Image.new("RGB", (width, 5)) for width in range(1, n_images + 1)]


def widths(rows):
    return (rows[:, 1] / rows[:, 0]).round().astype(int).tolist()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("batch_size", [1, 7, 300])
def test_rows_come_in_the_order_of_the_images(device, batch_size):
    rows = Widths(device).encode_images(draw(299), batch_size=batch_size)
    assert widths(rows) == list(range(1, 300))


def test_a_model_on_the_processor_never_runs_beside_the_threads():
    encoder = Widths("cpu")
    encoder.encode_images(draw(299), batch_size=8)
    assert encoder.most_running == 0


def test_a_model_elsewhere_computes_while_the_next_batches_are_prepared():
    encoder = Widths("cuda")

    def embed(images):
        last = images[-1][0]
        if last <= 16:  # more than a batch ahead
            assert encoder.began[last + 8].wait(timeout=60)
        return Widths.embed_images(encoder, images)

    encoder.embed_images = embed
    assert len(encoder.encode_images(draw(40), batch_size=8)) == 40


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_comes_before_an_image_that_cannot_be_opened_is_finished(device):
    told = []
    images = [*draw(20), "nowhere.png", *draw(20)]
    with pytest.raises(NNNormError, match=r"image nowhere.png: there is no such file"):
        Widths(device).encode_images(
            images, batch_size=5, progress=lambda done, _: told.append(done)
        )
    assert told == [5, 10, 15, 20]
