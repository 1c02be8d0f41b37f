"""The libraries of all engines, imported and not used, in the process that children come from."""

import warnings

import chromadb  # noqa: F401
import duckdb  # noqa: F401
import lancedb  # noqa: F401
import milvus_lite.adapter.grpc.server  # noqa: F401
import psycopg  # noqa: F401
import pymilvus  # noqa: F401
import qdrant_client  # noqa: F401
import qdrant_edge  # noqa: F401
import sqlean  # noqa: F401
import sqlite_vec  # noqa: F401
import usearch.index  # noqa: F401

# It restarts its threads in a child, and warns of what it may have been doing meanwhile: nothing.
warnings.filterwarnings("ignore", message="lancedb fork support")
