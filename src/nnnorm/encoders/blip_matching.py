"""BLIP's image-text matching: a scorer with cross-attention, for `fit_scores`.

Every pair of an image and a text passes through the text encoder together, so that there are no
embeddings but a matrix of scores, computed in ``n_images x n_texts`` forward passes. According to
the paper's appendix such scores have few hubs. A score is the logit of "image and text match"
(higher is better). A text begins with ``[ENC]`` here, as in the training and evaluation of BLIP's
authors; transformers' own forward pass leaves ``[CLS]``.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.encoder import check_texts
from nnnorm.encoders.huggingface import HuggingFace
from nnnorm.encoders.images import open_image
from nnnorm.encoders.layers import to_numpy
from nnnorm.encoders.weights import is_out_of_memory
from nnnorm.errors import NNNormError, require
from nnnorm.io import Progress

FloatArray: TypeAlias = npt.NDArray[np.float32]


class BlipMatcher:
    """Scores of images with texts by BLIP's matching head.

    Parameters
    ----------
    encoder : HuggingFace
        A BLIP for retrieval (`BlipForImageTextRetrieval`).

    Examples
    --------
    In image retrieval the gallery consists of the images, which are the rows of the scores.

    >>> matcher = BlipMatcher(HuggingFace("Salesforce/blip-itm-base-coco"))  # doctest: +SKIP
    >>> bank = matcher.score(images, past_texts)  # doctest: +SKIP
    >>> bias = nnnorm.NNN().fit_scores(bank)  # doctest: +SKIP
    >>> corrected = matcher.score(images, texts).T - bias.correction  # doctest: +SKIP
    """

    def __init__(self, encoder: HuggingFace) -> None:
        if not hasattr(encoder.model, "itm_head"):
            raise NNNormError(
                f"{encoder.name} has no matching head; expected a BLIP for retrieval, "
                f"got {type(encoder.model).__name__}"
            )
        self.encoder = encoder

    def score(
        self,
        images: Sequence[Any],
        texts: Sequence[str],
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> FloatArray:
        """Score every image with every text.

        Parameters
        ----------
        images : sequence of paths or Pillow images
            Each is encoded once; its patches are kept while its texts are matched.
        texts : sequence of str
            They are matched in batches.
        batch_size : int
            Pairs per forward pass.
        progress : callable, optional
            Called with ``(pairs done, pairs in all)``.

        Returns
        -------
        ndarray, shape (n_images, n_texts)
            The logit of "match", float32.
        """
        check_texts(texts)
        if batch_size < 1:
            raise NNNormError(f"batch_size must be 1 or more; got {batch_size}")
        batches = self._tokenize(texts, batch_size)
        scores = np.empty((len(images), len(texts)), dtype=np.float32)
        for row, image in enumerate(images):
            pixels = self.encoder.prepare_image(open_image(image))
            scores[row] = self._match(pixels, batches)
            if progress is not None:
                progress((row + 1) * len(texts), scores.size)
        return scores

    def match(self, pixels: Any, texts: Sequence[str], *, batch_size: int = 32) -> FloatArray:
        """Return the logits ``(n_texts,)`` of one image, from `prepare_image`, with some texts."""
        return self._match(pixels, self._tokenize(texts, batch_size))

    def _match(self, pixels: Any, batches: Sequence[dict[str, Any]]) -> FloatArray:
        torch = require("torch", "encoders")
        model, found = self.encoder.model, []
        try:
            with torch.inference_mode():
                patches = model.vision_model(**self.encoder.stack([pixels])).last_hidden_state
                for batch in batches:
                    seen = patches.expand(len(batch["input_ids"]), -1, -1)
                    states = model.text_encoder(
                        **batch,
                        encoder_hidden_states=seen,
                        encoder_attention_mask=torch.ones(
                            seen.shape[:2], dtype=torch.long, device=seen.device
                        ),
                    ).last_hidden_state
                    found.append(to_numpy(model.itm_head(states[:, 0]))[:, 1])
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise NNNormError(
                f"{self.encoder.name} ran out of memory with {len(batches[0]['input_ids'])} pairs "
                "at once; take a smaller batch_size (--batch-size)"
            ) from error
        return np.concatenate(found)

    def _tokenize(self, texts: Sequence[str], batch_size: int) -> list[dict[str, Any]]:
        """Tokenise texts in batches; they begin with ``[ENC]``."""
        batches = []
        for start in range(0, len(texts), batch_size):
            tokens = self.encoder.tokenize(texts[start : start + batch_size])
            tokens["input_ids"][:, 0] = self.encoder.matching_token()
            batches.append(tokens)
        return batches
