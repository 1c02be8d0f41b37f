"""Pixels as the authors' evaluation prepares them, in plain lines."""

import numpy as np
from PIL import Image


def square_pixels(paths, size, mean, std):
    rows = []
    for path in paths:
        image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        pixels = np.asarray(image, dtype=np.float32) / 255
        rows.append(((pixels - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1))
    return np.stack(rows).astype(np.float32)
