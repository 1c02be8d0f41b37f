"""Arrays and files in, whole files out.

arrays         arrays of any library, files and folders of shards, read as numpy arrays
parquet        the columns of parquet files
remote         files and folders behind a URL
stored         matrices in one or several parts, read in float32 blocks
ids            ids that the caller gives, checked
embeddings     the one door for embeddings: opened and checked in one read
sound          embeddings without their broken rows
ready_scores   ready scores, opened and checked
tables         the one reader of CSV, TSV, JSONL and JSON
logs           query logs: embeddings, times and counts, read in parts
files          files written whole or not at all
records        arrays and a description in one file
urls           URLs in messages, without passwords
progress       how far long work has come
"""

from nnnorm.io.arrays import find_shards, read_npy, read_npz
from nnnorm.io.embeddings import (
    Embeddings,
    Metric,
    Source,
    check_same_dim,
    check_same_norms,
    measure_rows,
    open_embeddings,
)
from nnnorm.io.files import check_regular, check_writable, make_folder, safe_name, write_whole
from nnnorm.io.ids import check_ids
from nnnorm.io.logs import Clock, LogPart, read_counts, read_log, read_time, read_times
from nnnorm.io.progress import Done, Progress
from nnnorm.io.ready_scores import ScoreMatrix, open_matrix
from nnnorm.io.records import (
    check_entries,
    damaged,
    digest_of,
    kind_of_record,
    load_record,
    save_record,
)
from nnnorm.io.sound import Sound, open_sound
from nnnorm.io.tables import (
    TABLE_SUFFIXES,
    read_all_columns,
    read_column,
    read_columns,
    read_json,
    read_jsonl,
    read_lines,
)
from nnnorm.io.urls import hide_secrets, show_url
