"""The two towers and their training: a small CNN, a bag of words and word pairs, InfoNCE."""

import time
from collections import Counter
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from nnnorm.datasets.shapes import split_words, word_pairs

TEMPERATURE = 0.07


class ImageTower(nn.Module):
    """Four convolutions that keep where things stand, then two layers."""

    def __init__(self, dim: int, resolution: int, width: int = 16) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 3 * width, 3 * width]
        layers: list[nn.Module] = []
        for place, (n_in, n_out) in enumerate(pairwise(sizes)):
            stride = 2 if place < 3 else 1
            layers += [nn.Conv2d(n_in, n_out, 3, stride, 1), nn.BatchNorm2d(n_out), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        n_flat = sizes[-1] * (resolution // 8) ** 2
        self.head = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(n_flat, 256), nn.ReLU(), nn.Linear(256, dim)
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Unit vectors of uint8 pictures ``(n, 3, resolution, resolution)``."""
        return functional.normalize(self.head(self.convolutions(pictures.float() / 127.5 - 1)))


class TextTower(nn.Module):
    """The sum of vectors of words and word pairs, then two layers; numpy can do it too."""

    def __init__(self, n_features: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.features = nn.EmbeddingBag(n_features, hidden, mode="sum")
        nn.init.normal_(self.features.weight, std=0.1)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.middle = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, dim)

    def forward(self, features: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Unit vectors of texts, given as their features one after another."""
        counts = torch.diff(starts, append=torch.tensor([len(features)]))
        summed = self.features(features, starts) / counts.sqrt()[:, None] + self.bias
        return functional.normalize(
            self.last(functional.relu(self.middle(functional.relu(summed))))
        )


def find_features(texts: list[str], least: int) -> list[str]:
    """All words, then the word pairs that come at least `least` times, in alphabetical order."""
    words = Counter(word for text in texts for word in split_words(text))
    pairs = Counter(pair for text in texts for pair in word_pairs(split_words(text)))
    return sorted(words) + sorted(pair for pair, count in pairs.items() if count >= least)


def index_features(texts: list[str], features: list[str]) -> list[np.ndarray]:
    """The numbers of each text's words and known pairs."""
    numbers = {feature: number for number, feature in enumerate(features)}
    out = []
    for text in texts:
        words = split_words(text)
        known = [numbers[word] for word in words]
        known += [numbers[pair] for pair in word_pairs(words) if pair in numbers]
        out.append(np.array(known, dtype=np.int64))
    return out


def as_bags(rows: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features one after another, and where each text begins."""
    starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(starts)


def train(
    pictures: np.ndarray,
    captions: list[np.ndarray],
    n_features: int,
    *,
    dim: int,
    hidden: int = 256,
    epochs: int,
    batch: int = 256,
    rate: float = 2e-3,
    seed: int,
) -> tuple[ImageTower, TextTower]:
    """Train both towers on pictures and their five captions each (in order)."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    image, text = ImageTower(dim, pictures.shape[-1]), TextTower(n_features, hidden, dim)
    parameters = [*image.parameters(), *text.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.02)
    n_pictures = len(pictures)
    steps = max(1, n_pictures // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * steps, pct_start=0.1
    )
    for epoch in range(epochs):
        began, total = time.perf_counter(), 0.0
        order = rng.permutation(n_pictures)
        for step in range(steps):
            chosen = order[step * batch : (step + 1) * batch]
            seen = image(torch.from_numpy(pictures[chosen]))
            slots = rng.integers(5, size=len(chosen))  # another caption in every epoch
            said = text(*as_bags([captions[row] for row in 5 * chosen + slots]))
            logits = seen @ said.T / TEMPERATURE
            truth = torch.arange(len(chosen))
            loss = functional.cross_entropy(logits, truth) / 2
            loss = loss + functional.cross_entropy(logits.T, truth) / 2
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        seconds = time.perf_counter() - began
        print(
            f"epoch {epoch + 1:2d} of {epochs}: loss {total / steps:.3f}, {seconds:.1f} s",
            flush=True,
        )
    return image.eval(), text.eval()


@torch.no_grad()
def encode_pictures(image: ImageTower, pictures: np.ndarray) -> np.ndarray:
    """Unit vectors of pictures."""
    parts = [image(torch.from_numpy(pictures[i : i + 500])) for i in range(0, len(pictures), 500)]
    return torch.cat(parts).numpy()


@torch.no_grad()
def encode_captions(text: TextTower, rows: list[np.ndarray]) -> np.ndarray:
    """Unit vectors of texts."""
    parts = [text(*as_bags(rows[i : i + 2000])) for i in range(0, len(rows), 2000)]
    return torch.cat(parts).numpy()
