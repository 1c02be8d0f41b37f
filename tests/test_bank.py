"""`Bank`: counts, samples, forgetting, files, and rejected input."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnnorm
from nnnorm import Bank, NNNormError, NNNormWarning
from tests.test_dedup import naive_unique


@pytest.fixture
def log(rng):
    """600 rows of 40 queries, in the order of their times."""
    queries = rng.normal(size=(40, 32))
    rows = queries[rng.integers(0, 40, 600)] + 0.1 * rng.normal(size=(600, 32))
    return rows.astype(np.float32)


def same(first, second):
    """Whether two banks hold the same, and will go on in the same way."""
    about, other = (
        {key: value for key, value in bank.to_dict().items() if key != "created"}
        for bank in (first, second)
    )
    arrays = zip((first.rows, first.counts), (second.rows, second.counts), strict=True)
    return about == other and all(np.array_equal(*pair) for pair in arrays)


# --- what it holds -------------------------------------------------------------------------------


def test_a_bank_counts_unique_queries_and_all_queries(log):
    bank = Bank.of(log, normalize=True)
    assert (len(bank), bank.n_seen, bank.dim, bank.normalized) == (40, 600, 32, True)
    assert bank.counts.sum() == 600
    assert bank.rows.dtype == np.float16
    assert repr(bank) == "Bank(40 unique of 600 queries, dim 32, normalized)"
    with pytest.raises(ValueError, match="read-only"):
        bank.rows[0] = 0


def test_a_bank_tells_a_sample_from_all_unique_queries(rng, tmp_path):
    rows = np.repeat(rng.normal(size=(50, 32)), 2, axis=0)
    whole, part = (Bank.of(rows, max_references=most, normalize=True) for most in (50, 49))
    assert (whole.is_sample, part.is_sample) == (False, True)
    assert repr(whole).startswith("Bank(50 unique of 100 queries")
    assert repr(part).startswith("Bank(49 sampled of 100 queries")
    part.save(tmp_path / "bank.safetensors")
    assert Bank.load(tmp_path / "bank.safetensors").to_dict()["references_sampled"]
    gallery = rng.normal(size=(9, 32))
    params = [nnnorm.NNN().fit(gallery, bank, normalize=True).params for bank in (whole, part)]
    assert [some["n_unique"] for some in params] == [50, 49]
    assert ["references_sampled" in some for some in params] == [False, True]


def test_queries_that_were_forgotten_are_no_references(rng, tmp_path):
    rows = np.repeat(rng.normal(size=(50, 32)), 2, axis=0)
    bank = Bank.of(rows, times=np.arange(100), normalize=True)
    bank.forget(before=60)
    bank.save(tmp_path / "bank.safetensors")
    for kept in (bank, Bank.load(tmp_path / "bank.safetensors")):
        assert (len(kept), kept.n_seen, kept.n_forgotten, kept.is_sample) == (20, 100, 60, False)
        bias = nnnorm.NNN().fit(rng.normal(size=(9, 32)), kept, normalize=True)
        assert (bias.n_references, bias.params["n_unique"]) == (40, 20)


def test_a_bank_of_raw_rows_keeps_their_norms(rng):
    rows = (rng.normal(size=(20, 64)) * rng.uniform(1e-6, 1e6, size=(20, 1))).astype(np.float32)
    bank = Bank.of(rows, normalize=False)
    np.testing.assert_allclose(bank.rows, rows, rtol=2e-3, atol=1e-6 * np.abs(rows).max())
    np.testing.assert_allclose(bank.embeddings().norm_range[1], 1e6 * 8, rtol=0.9)


def test_a_fit_takes_a_bank_or_its_file_as_references(log, rng, tmp_path):
    gallery = rng.normal(size=(50, 32))
    bank = Bank.of(log, normalize=True)
    bank.save(tmp_path / "bank.safetensors")
    fitted = [
        nnnorm.NNN().fit(gallery, references, normalize=True)
        for references in (log, bank, tmp_path / "bank.safetensors")
    ]
    for bias in fitted:
        assert (bias.n_references, bias.params["n_unique"]) == (600, 40)
        np.testing.assert_allclose(bias.correction, fitted[0].correction, atol=1e-3)
    assert fitted[1].fingerprints["references"] == bank.fingerprint
    assert np.array_equal(fitted[1].values, fitted[2].values)


def test_a_normalized_bank_and_a_raw_gallery_do_not_mix(log, rng):
    bank = Bank.of(log, normalize=True)
    with pytest.raises(NNNormError, match="rows of references have norm 1, but rows of gallery"):
        nnnorm.NNN().fit(10 * rng.normal(size=(50, 32)), bank)
    with pytest.raises(NNNormError, match="already normalized, but normalize is False"):
        nnnorm.NNN().fit(rng.normal(size=(50, 32)), bank, normalize=False)


def test_a_bank_has_no_duplicates_to_keep(log, rng):
    bank = Bank.of(log, normalize=True)
    words = 'duplicates="keep" needs all past queries, but a bank has only the unique'
    with pytest.raises(NNNormError, match=words):
        nnnorm.NNN().fit(rng.normal(size=(9, 32)), bank, duplicates="keep", normalize=True)


# --- a flood moves a bias by one query at most ---------------------------------------------------


def corrections(gallery, *parts, most=None, counts=None):
    bank = Bank.of(parts[0], normalize=True, max_references=most)
    for part in parts[1:]:
        bank.add(part, counts=counts)
    return nnnorm.NNN(10, 0.5).fit(gallery, bank, normalize=True).correction


@pytest.mark.parametrize("most", [None, 100])
def test_a_flood_of_one_query_is_one_query(rng, most):
    """With room for all, and with a bank that is full."""
    gallery, honest = rng.normal(size=(200, 48)), rng.normal(size=(300, 48))
    query = gallery[:1] + 0.3 * rng.normal(size=(1, 48))
    once = corrections(gallery, honest, query, most=most)
    by_rows = corrections(gallery, honest, query.repeat(20_000, axis=0), most=most)
    by_count = corrections(gallery, honest, query, counts=[10**6], most=most)
    np.testing.assert_array_equal(by_rows, once)
    np.testing.assert_array_equal(by_count, once)


@pytest.mark.slow
def test_a_flood_of_near_copies_is_one_query(rng):
    """Whatever lies within a cosine of 0.97 of one query is closer than 0.88 to each other."""
    gallery, honest = rng.normal(size=(200, 48)), rng.normal(size=(300, 48))
    query = gallery[:1] + 0.3 * rng.normal(size=(1, 48))
    query /= np.linalg.norm(query)
    noise = rng.normal(size=(20_000, 48))
    noise -= (noise @ query.T) * query
    flood = 0.97 * query + np.sqrt(1 - 0.97**2) * noise / np.linalg.norm(
        noise, axis=1, keepdims=True
    )
    before, once, flooded = (
        corrections(gallery, honest, *more) for more in ([], [flood[:1]], [flood])
    )
    np.testing.assert_array_equal(flooded, once)
    # One query of ten, at a weight of a half, moves a cosine of at most 1.
    assert np.abs(flooded - before).max() <= 0.5 / 10
    assert np.abs(flooded - before).max() > 0
    raw = nnnorm.NNN(10, 0.5).fit(
        gallery, np.concatenate([honest, flood]), normalize=True, duplicates="keep"
    )
    assert np.abs(raw.correction - before).max() > 2 * 0.5 / 10


# --- any sequence of changes ---------------------------------------------------------------------


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 60)),
        st.tuples(st.just("forget"), st.integers(0, 30)),
        st.tuples(st.just("save"), st.just(0)),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:only .* rows of references are unique")
@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000),
    steps=steps,
    most=st.sampled_from([5, 20, None]),
)
def test_any_sequence_of_add_forget_and_save_gives_the_rows_of_the_naive_loop(
    tmp_path_factory, seed, steps, most
):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(30, 16)).astype(np.float32)
    gallery = rng.normal(size=(20, 16)).astype(np.float32)
    path = tmp_path_factory.mktemp("bank") / "bank.safetensors"

    def draw(n, start):
        rows = queries[rng.integers(0, 30, n)] + 0.1 * rng.normal(size=(n, 16)).astype(np.float32)
        return rows, start + np.arange(n, dtype=float) / 10, rng.integers(1, 4, n)

    rows, times, counts = draw(20, 0.0)
    bank = Bank.of(
        rows,
        times=times,
        counts=counts,
        max_references=most,
        normalize=True,
        seed=seed,
    )
    since = [(rows, times, counts)]  # what has come since the last time that something left
    forgotten = False
    for step, number in steps:
        if step == "add":
            since.append(draw(number, since[-1][1][-1] + 0.1))
            bank.add(since[-1][0], times=since[-1][1], counts=since[-1][2])
        elif step == "forget" and (is_kept := bank.last_seen >= np.datetime64(number, "s")).any():
            expected = bank.rows[is_kept]
            bank.forget(before=number)
            np.testing.assert_array_equal(bank.rows, expected)
            forgotten = True
        elif step == "save":
            bank.save(path)
            again = Bank.load(path)
            assert same(bank, again)
            bank = again
    assert most is None or len(bank) <= most
    if not forgotten and most is None:
        rows, times, counts = (np.concatenate(part) for part in zip(*since, strict=True))
        rounded = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
        np.testing.assert_allclose(bank.rows, rounded[naive_unique(rounded)[0]], atol=1e-3)
        assert bank.n_seen == bank.counts.sum() == counts.sum()
    fitted = nnnorm.NNN(1, 0.5).fit(gallery, bank, normalize=True)
    scratch = nnnorm.NNN(1, 0.5).fit(gallery, np.array(bank.rows), normalize=True)
    np.testing.assert_allclose(fitted.values, scratch.values, atol=1e-6)


def test_forget_keeps_a_query_that_was_asked_again_later(rng):
    rows = rng.normal(size=(50, 32))
    bank = Bank.of(rows, times=np.zeros(50), normalize=True)
    bank.add(rows[:10], times=np.full(10, 7.0))
    bank.forget(before=1)
    assert len(bank) == 10


# --- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "times",
    [
        ["2026-05-01", "2026-05-02", "2026-05-03"],
        ["2026-05-01T00:00:00Z", "2026-05-02T02:00:00+02:00", "2026-05-03 00:00"],
        np.array(["2026-05-01", "2026-05-02", "2026-05-03"], dtype="datetime64[D]"),
        [datetime(2026, 5, day, tzinfo=UTC) for day in (1, 2, 3)],
        [datetime(2026, 5, day) for day in (1, 2, 3)],
        [20260501, 20260502, 20260503.0],
        ["20260501", "20260502", "20260503"],
    ],
    ids=["texts", "offsets", "datetime64", "aware", "naive", "numbers", "texts of numbers"],
)
def test_dates_of_all_kinds_are_the_same_dates(times):
    bank = Bank.of(np.eye(3), times=times)
    assert bank.last_seen.astype(str).tolist() == [
        f"2026-05-0{day}T00:00:00.000000" for day in (1, 2, 3)
    ]
    for before in ("2026-05-02", datetime(2026, 5, 2), np.datetime64("2026-05-02"), 20260502):
        bank.forget(before=before)
        assert len(bank) == 2


def test_numbers_are_seconds_since_1970():
    bank = Bank.of(np.eye(2), times=[1777593600, 1777593601.5])
    assert repr(bank) == "Bank(2 unique of 2 queries, dim 2, seen 2026-05-01)"
    about = bank.to_dict()
    assert (about["oldest_seen"], about["last_seen"]) == (1777593600.0, 1777593601.5)
    bank.add(np.eye(2), times=["2026-05-02", 1777680000])
    assert bank.last_seen.astype(str).tolist() == ["2026-05-02T00:00:00.000000"] * 2


def test_rows_dated_in_the_future_are_warned_of(tmp_path):
    now = datetime.now(UTC)
    bank = Bank.of(np.eye(2), times=[now, now + timedelta(hours=13)])
    with pytest.warns(
        NNNormWarning, match="rows of queries are dated in the future, up to 2150-01-"
    ):
        bank.add(np.eye(2), times=["2026-05-01", "2150-01-01"])
    (tmp_path / "log.jsonl").write_text('{"embedding": [1.0, 0.0], "time": "2150-01-01"}')
    with pytest.warns(NNNormWarning, match="log.jsonl are dated in the future"):
        Bank.of(tmp_path / "log.jsonl", times="time")


def test_times_in_two_units_are_warned_of():
    bank = Bank.of(np.eye(2), times=["2026-05-01"] * 2)
    with pytest.warns(NNNormWarning, match="are dated after 2000, and other queries of the bank"):
        bank.add(-np.eye(2), times=[46200.5, 1777680000])  # the first one counts days


# --- logs ----------------------------------------------------------------------------------------


def write_log(path, rows, times, counts):
    if path.suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {
            "vector": [row.tolist() for row in rows],
            "asked": [datetime.fromisoformat(time) for time in times],
            "times": counts,
        }
        vector = pyarrow.list_(pyarrow.float32())
        arrays = [pyarrow.array(columns["vector"], vector), columns["asked"], columns["times"]]
        parquet.write_table(pyarrow.table(arrays, names=list(columns)), path)
        return
    entries = [
        {"vector": row.tolist(), "asked": time, "times": int(count)}
        for row, time, count in zip(rows, times, counts, strict=True)
    ]
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(entry) for entry in entries))
        return
    comma = "\t" if path.suffix == ".tsv" else ","
    lines = [comma.join(("vector", "asked", "times"))]
    for entry in entries:
        vector = " ".join(f"{value:.9g}" for value in entry["vector"])
        lines.append(comma.join((f"[{vector}]", entry["asked"], str(entry["times"]))))
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv", "jsonl"])
def test_a_log_of_any_kind_gives_the_bank_of_its_rows(log, rng, tmp_path, suffix):
    path = tmp_path / f"log.{suffix}"
    rows = log[:100]
    times = [f"2026-05-{1 + number // 10:02d}T10:00:00" for number in range(100)]
    counts = rng.integers(1, 9, 100)
    write_log(path, rows, times, counts)
    options = {"normalize": True}
    bank = Bank.of(path, column="vector", times="asked", counts="times", **options)
    expected = Bank.of(rows, times=times, counts=counts, **options)
    assert same(bank, expected)
    more = Bank.of(rows[:60], times=times[:60], counts=counts[:60], **options)
    write_log(path, rows[60:], times[60:], counts[60:])
    more.add(path, column="vector", times="asked", counts="times")
    assert same(more, expected)


def test_a_log_is_read_in_parts(log, tmp_path, monkeypatch):
    monkeypatch.setattr("nnnorm.tables._PART_ROWS", 7)
    path = tmp_path / "log.jsonl"
    write_log(path, log[:50], ["2026-05-01"] * 50, [1] * 50)
    calls = []
    bank = Bank.of(path, column="vector", normalize=True, progress=lambda *a: calls.append(a))
    assert same(bank, Bank.of(log[:50], normalize=True))
    assert calls[0] == (7, 7)
    assert calls[-1] == (50, 50)


def test_raw_norms_of_a_log_are_warned_of(log, tmp_path):
    write_log(tmp_path / "log.jsonl", log[:9], ["2026-05-01"] * 9, [1] * 9)
    with pytest.warns(NNNormWarning, match=r"rows of .*log.jsonl have norms .* raw inner products"):
        Bank.of(tmp_path / "log.jsonl", column="vector")


# --- bad input: one sentence, and nothing changed -----------------------------------------------


GOOD = '{"embedding": [1.0, 0.0], "time": 1, "count": 2}\n'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"embedding": [NaN, 0.0], "time": 1, "count": 2}',
         r"log.jsonl must be finite; row 1 has NaN in column 0"),
        ('{"embedding": [1.0, 0.0, 2.0], "time": 1, "count": 2}',
         "all embeddings must have the same dimension; line 2 has 3 numbers"),
        ('{"embedding": "one", "time": 1, "count": 2}',
         r"line 2 has no embedding in the column embedding; expected a list of numbers"),
        ('{"embedding": [1.0, 0.0], "time": "soon", "count": 2}',
         "column time must be dates such as .* row 1 has 'soon'"),
        ('{"embedding": [1.0, 0.0], "time": 1, "count": -2}',
         "column count must be whole numbers of at least 1; row 1 has -2"),
        ('{"embedding": [1.0, 0.0], "time": 1, "count": 1.5}', "at least 1; row 1 has 1.5"),
        ('{"embedding": [1.0, 0.0], "time": 1, "count": "many"}', "at least 1; row 1 has 'many'"),
        ("{", "line 2 is not a JSON object"),
    ],
)  # fmt: skip
def test_a_bad_line_of_a_log_changes_nothing(tmp_path, line, words):
    (tmp_path / "log.jsonl").write_text(GOOD + line + "\n")
    bank = Bank.of(np.eye(2), times=[0, 0])
    before = bank.to_dict()
    with pytest.raises(NNNormError, match=words):
        bank.add(tmp_path / "log.jsonl", times="time", counts="count")
    assert bank.to_dict() == before
    with pytest.raises(NNNormError, match=words):
        Bank.of(tmp_path / "log.jsonl", times="time", counts="count")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.jsonl", "", "log.jsonl has no rows; is it truncated"),
        ("log.csv", "vector\n[1 2]\n", "must have the column embedding; it has: vector"),
        ("log.txt", "", r"suffix .npy, .npz or .parquet, .* got the suffix '.txt'"),
        ("log.parquet", "PAR1", "can't be read as parquet"),
    ],
)
def test_a_file_that_is_not_a_log_is_rejected(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(NNNormError, match=words):
        Bank.of(tmp_path / name)


def unit(rng, n, dim=16):
    rows = rng.normal(size=(n, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda bank, rng: bank.add(unit(rng, 3, 8), times=[1] * 3),
         "the dimension of the bank, 16; got 8. Were they encoded by different models"),
        (lambda bank, rng: bank.add(unit(rng, 3)),
         "got times for the bank, none for queries; pass times"),
        (lambda bank, rng: bank.add(unit(rng, 3), times="asked_at"),
         "queries has only embeddings, but times names a column, 'asked_at'; pass a query log"),
        (lambda bank, rng: bank.add(unit(rng, 3), times=[1, 2]),
         "times must have one entry per row; got 2 for 3 rows of queries"),
        (lambda bank, rng: bank.add(unit(rng, 3), times=[1, np.nan, 2]),
         "times must be dates .* row 1 has nan"),
        (lambda bank, rng: bank.add(unit(rng, 3), times=[1] * 3, counts=[1, 0, 2]),
         "counts must be whole numbers of at least 1; row 1 has 0"),
        (lambda bank, rng: bank.add(5 * unit(rng, 3), times=[1] * 3),
         r"norms of 5, but all rows of the bank have norms of about 1; scale"),
        (lambda bank, rng: bank.forget(before="now"), "before must be dates .*; got 'now'$"),
        (lambda bank, rng: bank.forget(before=99), "older than 99 .*would drop all"),
    ],
)  # fmt: skip
def test_a_bad_change_is_refused_and_changes_nothing(rng, change, words):
    bank = Bank.of(unit(rng, 30), times=np.arange(30))
    before, rows = bank.to_dict(), np.array(bank.rows)
    with pytest.raises(NNNormError, match=words):
        change(bank, rng)
    assert bank.to_dict() == before
    np.testing.assert_array_equal(bank.rows, rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"counts": np.array(["2026-05-01"] * 2, "M8[D]")}, "counts must be whole numbers"),
        ({"max_references": 0}, "max_references must be a whole number of at least 1; got 0"),
    ],
)  # fmt: skip
def test_a_bank_with_bad_settings_is_refused(options, words):
    with pytest.raises(NNNormError, match=words):
        Bank.of(np.eye(2), **options)


def test_a_bank_without_times_forgets_nothing():
    with pytest.raises(NNNormError, match="this bank has no times"):
        Bank.of(np.eye(2)).forget(before=1)


# --- files ---------------------------------------------------------------------------------------


def test_a_bank_that_was_loaded_goes_on_as_if_it_had_not_been_saved(log, tmp_path):
    path = tmp_path / "bank.safetensors"
    options = {"times": np.arange(300), "max_references": 20, "normalize": True}
    banks = [Bank.of(log[:300], **options) for _ in range(2)]
    banks[0].save(path)
    banks[0] = Bank.load(path)
    for bank in banks:
        bank.add(log[300:], times=np.arange(300, 600))
    assert same(*banks)


@pytest.mark.parametrize("most", [None, 300])
def test_adding_a_then_b_equals_both_at_once_for_equal_rows(rng, most):
    rows = rng.normal(size=(400, 64))[rng.integers(0, 400, 3000)]
    whole = Bank.of(rows, max_references=most, normalize=True)
    part = Bank.of(rows[:700], max_references=most, normalize=True)
    for some in np.split(rows[700:], [800, 801]):
        part.add(some)
    assert same(whole, part)
