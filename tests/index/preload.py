"""What a child of `test_kills.py` starts with: all engines imported, none of them used."""

import chromadb  # noqa: F401
import duckdb  # noqa: F401
import hnswlib  # noqa: F401
import lancedb.index  # noqa: F401
import psycopg  # noqa: F401
import pyarrow  # noqa: F401
import pymilvus  # noqa: F401
import qdrant_client.models  # noqa: F401
import sqlite_vec  # noqa: F401
import usearch.index  # noqa: F401

from tests.index.engines import world

world()
