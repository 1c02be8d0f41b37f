"""pgvector in PostgreSQL (`pip install 'nnnorm[pgvector]'`): exact search or HNSW, in plain SQL.

connection   statements, transactions and snapshots of a connection
table        what the system catalogue says of a table: columns, metric, index, comment
question     one search as SQL, and what comes back of it
writing      how a table is made and filled
store        `PgvectorStore`, which is made of these
"""

from nnnorm.index.stores.pgvector.store import PgvectorOptions, PgvectorStore

__all__ = ["PgvectorOptions", "PgvectorStore"]
