"""Ready scores, from any scorer: opened and checked, and never mistaken for embeddings.

A `ScoreMatrix` has items in rows and references in columns. Rows of zeros are valid, norms and
fingerprints have no meaning.
"""

import numpy as np

from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.io.arrays import read_source
from nnnorm.io.embeddings import Embeddings, Source
from nnnorm.io.stored import StoredMatrix, check_form, raise_not_finite


class ScoreMatrix(StoredMatrix):
    """A matrix of scores, shape ``(n_rows, n_columns)``, read in float32 blocks. Immutable."""

    def joined(self, other: "ScoreMatrix") -> "ScoreMatrix":
        """Return the rows of `self` followed by the rows of `other`, without a copy."""
        role = f"{self.name} and {other.name}"
        return ScoreMatrix([*self._parts, *other._parts], role=role)


@explain_arguments
def open_matrix(source: Source, *, name: str) -> ScoreMatrix:
    """Open ready scores: an array or path as in `open_embeddings`, where zero rows are valid."""
    if isinstance(source, ScoreMatrix):
        return source
    if isinstance(source, Embeddings):
        raise NNNormError(
            f"{name} must be ready scores of shape (n_gallery, n_references); got embeddings, "
            f"opened as {source.name}. Multiply them first, or use fit"
        )
    found = read_source(source, name)
    hint = found.hint or "convert with .astype(numpy.float32)"
    check_form(found.parts, found.name, "(n_gallery, n_references)", hint)
    opened = ScoreMatrix(found.parts, role=name, path=found.path)
    for start, block in opened.blocks():
        if not np.isfinite(block).all():
            raise_not_finite(found.name, start, block)
    return opened
