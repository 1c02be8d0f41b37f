"""A table of an application that gets its correction as one more column, and stays where it is."""

from dataclasses import replace
from typing import Any

import numpy as np

from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.index.corrected import CorrectedIndex, open_index
from nnnorm.index.recipe import make_recipe, origin_of
from nnnorm.index.store import Ids, Store, check_ids
from nnnorm.index.stores.tables import TableStore
from nnnorm.index.urls import open_store
from nnnorm.index.values import Correction, open_correction, open_items

# Norms that differ from 1 by less than this do so by rounding.
_UNIT = 5e-3


@explain_arguments
def adopt_table(store: "Store | str", bias: Correction, *, ids: Any = None) -> CorrectedIndex:
    """Add the bias to a table of an application as the column ``nnnorm_bias`` (PostgreSQL, DuckDB).

    The rows, vectors and other columns stay as they are, and the application goes on writing: a row
    that it inserts has the mean bias until it gets its own. Searches compare every row.

    Parameters
    ----------
    store : Store or str
        The table, or its URL.
    bias : Corrector, path or Bias
        A corrector, or its file, which gives the items their bias; or a bias that was fitted on
        them.
    ids : sequence of int or str, optional
        Ids of the rows of a `Bias`, by default 0…n−1.

    Returns
    -------
    CorrectedIndex
        Of the way "column".

    Examples
    --------
    >>> import duckdb
    >>> from nnnorm.index.stores.duckdb import DuckdbStore
    >>> own = duckdb.connect()
    >>> _ = own.execute("CREATE TABLE photos (id BIGINT, title TEXT, embedding FLOAT[2])")
    >>> _ = own.execute("INSERT INTO photos VALUES (0, 'Sea', [1, 0]), (1, 'Hill', [0, 1])")
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> index = adopt_table(DuckdbStore(own, "photos"), bias)
    >>> index.search(np.array([[0.8, 0.6]]), k=1).ids.tolist()
    [[1]]
    """
    opened, given = open_store(store), open_correction(bias)
    if not isinstance(opened, TableStore) or "column" not in opened.ways:
        raise NNNormError(
            f"{opened.name} can't get the bias as a column that its searches use; make a corrected "
            "copy with export_index"
        )
    facts = opened.facts()
    if facts is None or not facts.n_items:
        what = f"there is no {opened.name}" if facts is None else f"{opened.name} is empty"
        raise NNNormError(f"{what}; to make a new table, use build_index")
    batches = list(opened.scan())
    named = check_ids(np.concatenate([batch.ids for batch in batches]), facts.n_items)
    vectors, name = (
        np.concatenate([batch.vectors for batch in batches]),
        f"{opened.name}, its items",
    )
    corrector = given if isinstance(given, Corrector) else None
    norms = np.linalg.norm(vectors, axis=1)
    must_be_unit = facts.metric != "ip" or (corrector is not None and corrector.normalize)
    if must_be_unit and np.abs(norms - 1).max() > _UNIT:
        raise NNNormError(
            f"the column is subtracted from inner products, which needs unit norm here, but "
            f"{opened.name} has norms {norms.min():.4g} to {norms.max():.4g}; make a corrected "
            "copy with export_index, or divide the vectors by their norms first"
        )
    known = _in_order(given, ids, named) if isinstance(given, Bias) else given
    gallery, own = open_items(vectors, known, name=name, normalize=None)
    recipe = make_recipe(opened, gallery, own, way="column", corrector=corrector)
    unit = recipe.unit or facts.metric == "cosine"
    origin = origin_of(given if isinstance(given, Bias) else own)
    note = replace(recipe, state="whole", unit=unit, origin=origin).to_dict()
    opened.adopt([(named, own.values)], float(own.values.mean()), note)
    return open_index(opened)


def _in_order(bias: Bias, ids: Any, named: Ids) -> Bias:
    """Put the values of a bias in the order of the table."""
    given = check_ids(ids, len(bias), name="the bias")
    row_of = {own: row for row, own in enumerate(given.tolist())}
    missing = [own for own in named.tolist() if own not in row_of]
    if missing or len(given) != len(named):
        what = f"and none is for the id {missing[0]!r}" if missing else "which is more"
        raise NNNormError(
            f"the bias must have one value per row of the table, {len(named)}; it has {len(bias)}, "
            f"{what}; give the ids of its values with ids="
        )
    order = [row_of[own] for own in named.tolist()]
    kept = {role: print_ for role, print_ in bias.fingerprints.items() if role != "gallery"}
    return replace(bias, values=bias.values[order], fingerprints=kept)
