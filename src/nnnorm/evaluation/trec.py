"""Run files and qrels of TREC and BEIR: rankings and right items, by ids.

A run has a line ``query Q0 document rank score tag`` per hit, qrels have ``query 0 document grade``
or, as BEIR writes them, ``query<TAB>document<TAB>grade`` with a header. Documents of grade 1 and
more are right; lower grades and unjudged documents are wrong. Grades are the gains of nDCG, as
in trec_eval.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import IntArray
from nnnorm.errors import NNNormError, warn
from nnnorm.evaluation.metrics import Truth, make_truth, open_truth
from nnnorm.files import PathLike, write_whole
from nnnorm.ranking import Ranking
from nnnorm.tables import check_ids, read_lines

# The grade of each judged document of each query.
Qrels: TypeAlias = Mapping[str, Mapping[str, int]]
_RUN = "query Q0 document rank score tag"
_QRELS = "query 0 document grade"


def write_run(
    path: PathLike, ranking: Ranking, *, query_ids: npt.ArrayLike | None = None, tag: str = "nnnorm"
) -> None:
    """Write a ranking as a TREC run file.

    Parameters
    ----------
    path : str or PathLike
    ranking : Ranking
        Documents are named by its `parents`, else by its `ids`, else by row numbers.
    query_ids : array of int or str, shape (n_queries,), optional
        By default, queries are numbered from 0.
    tag : str
        The name of the search, in the last column.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> from nnnorm import search
    >>> path = Path(tempfile.mkdtemp()) / "run.txt"
    >>> write_run(path, search(np.eye(2), np.eye(2), k=1, ids=["a", "b"]), query_ids=["x", "y"])
    >>> print(path.read_text(), end="")
    x Q0 a 1 1 nnnorm
    y Q0 b 1 1 nnnorm
    """
    known = (ranking.parents, ranking.ids, ranking.indices)
    names = next(some for some in known if some is not None)
    numbered = range(len(names)) if query_ids is None else query_ids
    queries = _check_words(check_ids(numbered, len(names), name="queries"), "query ids")
    (word,) = _check_words([tag], "the tag")
    lines = []
    for query, row, scores in zip(queries, names, ranking.scores, strict=True):
        is_hit = scores > -np.inf  # other ranks have no item
        hits = zip(_check_words(row[is_hit], "ids"), scores[is_hit], strict=True)
        for rank, (item, score) in enumerate(hits, start=1):
            lines.append(f"{query} Q0 {item} {rank} {score:.9g} {word}\n")
    write_whole(path, lambda file: file.write("".join(lines).encode()))


def read_run(path: PathLike, *, query_ids: npt.ArrayLike, ids: npt.ArrayLike) -> Ranking:
    r"""Read a run file of any system, for `evaluate_ranking`.

    As in trec_eval, hits are sorted by score and ties by document id in reverse, and the ranks in
    the file are ignored. Missing hits have the index -1.

    Parameters
    ----------
    path : str or PathLike
    query_ids : array of int or str, shape (n_queries,)
        The queries of the ranking, one per row; other queries of the file are ignored.
    ids : array of int or str, shape (n_gallery,)

    Returns
    -------
    Ranking

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "run.txt"
    >>> _ = path.write_text("x Q0 b 1 0.9 other\nx Q0 a 2 0.7 other\n")
    >>> read_run(path, query_ids=["x"], ids=["a", "b"]).indices.tolist()
    [[1, 0]]
    """
    rows, places = _places(query_ids, "queries"), _places(ids, "gallery")
    found: dict[str, dict[str, float]] = {query: {} for query in rows}
    for where, cells in _read_cells(path, _RUN):
        query, item, score = cells[0], cells[2], _to_number(float, cells[4], where, "score")
        if query not in found:
            continue
        if item not in places:
            raise NNNormError(f"{where} has the document {item!r}, which isn't among the ids")
        _add(found[query], item, score, where)
    depth = max(map(len, found.values()), default=0)
    if depth == 0:
        raise NNNormError(
            f"{path} has no hits for these queries, such as {next(iter(rows), None)!r}; do the "
            "query ids match the file?"
        )
    indices = np.full((len(rows), depth), -1, dtype=np.int64)
    scores = np.full((len(rows), depth), -np.inf, dtype=np.float32)
    for row, hits in enumerate(found.values()):
        best = sorted(hits, key=lambda item: (hits[item], item), reverse=True)
        indices[row, : len(best)] = [places[item] for item in best]
        scores[row, : len(best)] = [hits[item] for item in best]
    return Ranking(scores, indices)


def read_qrels(path: PathLike) -> dict[str, dict[str, int]]:
    r"""Read the judgments of a qrels file, TREC's or BEIR's.

    Returns
    -------
    dict
        ``qrels[query][document]`` is a grade.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "test.tsv"
    >>> _ = path.write_text("query-id\tcorpus-id\tscore\nx\ta\t2\n")
    >>> read_qrels(path)
    {'x': {'a': 2}}
    """
    found: dict[str, dict[str, int]] = {}
    for where, cells in _read_cells(path, _QRELS):
        grade = int(_to_number(int, cells[-1], where, "grade"))
        _add(found.setdefault(cells[0], {}), cells[-2], grade, where)
    return found


def _add(known: dict[str, Any], item: str, number: float, where: str) -> None:
    if item in known:
        raise NNNormError(f"{where} repeats the document {item!r} of this query; keep one line")
    known[item] = number


def write_qrels(
    path: PathLike, truth: Any, *, query_ids: npt.ArrayLike, ids: npt.ArrayLike
) -> None:
    """Write the right items of queries as a TREC qrels file.

    Parameters
    ----------
    path : str or PathLike
    truth : array, list or Truth
        See `open_truth`. A right item without a grade gets 1.
    query_ids, ids : array of int or str, shapes (n_queries,) and (n_gallery,)

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "qrels.txt"
    >>> write_qrels(path, [1, 0], query_ids=["x", "y"], ids=["a", "b"])
    >>> print(path.read_text(), end="")
    x 0 b 1
    y 0 a 1
    """
    queries = _check_words(_places(query_ids, "queries"), "query ids")
    items = _check_words(_places(ids, "gallery"), "ids")
    right = open_truth(truth, n_queries=len(queries), n_gallery=len(items))
    grades = np.ones_like(right.items) if right.grades is None else right.grades
    pairs = zip(right.queries, right.items, grades, strict=True)
    lines = [f"{queries[query]} 0 {items[item]} {grade}\n" for query, item, grade in pairs]
    write_whole(path, lambda file: file.write("".join(lines).encode()))


def truth_of_qrels(
    qrels: Qrels, *, query_ids: npt.ArrayLike, ids: npt.ArrayLike
) -> tuple[IntArray, Truth]:
    """Return the rows of the queries that have a right item, and the truth of those queries.

    Queries and right documents without an id are left out, with a warning.

    Examples
    --------
    >>> qrels = {"x": {"a": 2, "b": 0}, "y": {"b": 1}}
    >>> rows, truth = truth_of_qrels(qrels, query_ids=["y", "x"], ids=["a", "b"])
    >>> rows.tolist(), truth.items.tolist(), truth.grades.tolist()
    ([0, 1], [1, 0], [1, 2])
    """
    places, row_of = _places(ids, "gallery"), _places(query_ids, "queries")
    right = {
        query: {item: grade for item, grade in judged.items() if grade > 0}
        for query, judged in qrels.items()
    }
    pairs = [
        (row, places[item], grade)
        for query, row in row_of.items()
        for item, grade in right.get(query, {}).items()
        if item in places
    ]
    if not pairs:
        judged = next(((query, *some) for query, some in right.items() if some), ("none", "none"))
        raise NNNormError(
            "the qrels have no right document for these queries and items, with ids such as "
            f"{next(iter(row_of))!r} and {next(iter(places))!r}; the qrels have {judged[0]!r} and "
            f"{judged[1]!r}: pass query_ids and ids (--query-ids and --ids)"
        )
    queries, items, grades = np.array(pairs, dtype=np.int64).T
    rows, queries = np.unique(queries, return_inverse=True)
    if (n_idle := len(row_of) - len(rows)) > 0:
        warn(f"{n_idle:,} of {len(row_of):,} queries without a right item in the qrels are dropped")
    if n_absent := sum(query not in row_of for query, some in right.items() if some):
        warn(f"{n_absent:,} queries of the qrels aren't among the queries and are dropped")
    known = (some for query, some in right.items() if query in row_of)
    if n_missing := sum(item not in places for some in known for item in some):
        warn(
            f"{n_missing:,} right documents of the qrels aren't in the gallery; they are left out, "
            "but other tools count them as not found"
        )
    return rows, make_truth(queries.ravel(), items, len(rows), len(places), grades)


def _read_cells(path: PathLike, expected: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each line; BEIR's qrels have tabs and a header, others have spaces."""
    lines = read_lines(path)
    is_beir = expected == _QRELS and lines[0].count("\t") == 2
    n_cells = 3 if is_beir else len(expected.split())
    first = lines[0].split("\t")[-1].strip().lstrip("-").replace(".", "")
    skipped = 1 if is_beir and not first.isdigit() else 0
    for number, line in enumerate(lines[skipped:], start=1 + skipped):
        cells = [cell.strip() for cell in line.split("\t")] if is_beir else line.split()
        if len(cells) != n_cells:
            shown = "query, document and grade between tabs" if is_beir else expected
            kind = "qrels" if expected == _QRELS else "run"
            problem = f"{path}: line {number} of a {kind} file must have {n_cells} cells: {shown}"
            raise NNNormError(f"{problem}; got {len(cells)}")
        yield f"{path}: line {number}", cells


def _to_number(kind: Any, text: str, where: str, name: str) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = np.nan
    if not abs(number) < 1e18:  # NaN, infinity, or too large for int64
        what = "whole number" if kind is int else "number"
        raise NNNormError(f"{where} has the {name} {text!r}; expected a {what}")
    return float(number)


def _places(ids: npt.ArrayLike, name: str) -> dict[str, int]:
    checked = check_ids(ids, len(np.asarray(ids)), name=name)
    return {str(own): place for place, own in enumerate(checked.tolist())}


def _check_words(ids: Iterable[Any], name: str) -> list[str]:
    """Return ids as text, or raise an error if one is empty or has a space."""
    words = [str(own) for own in ids]
    if broken := [word for word in words if word.split() != [word]]:
        raise NNNormError(
            f"{name} of a TREC file can't be empty or have spaces; got {broken[0]!r}: rename them"
        )
    return words
