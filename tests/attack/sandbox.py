"""Runs commands in forked processes with limits on time and memory.

A server process imports the package once; every command then is a fork of it, which costs
milliseconds. The server is a process of its own, since a fork of a process that has threads (pytest
with engines loaded) may hang.
"""

import contextlib
import faulthandler
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from typer.main import get_command

ROOT = Path(__file__).parents[2]
# Address space beyond what the libraries have reserved already; engines reserve far more than
# they use, so a database only has the limit of what it really uses.
SPACE = 4 * 2**30
# Bytes in use: no command on these small files needs nearly as much.
MOST_MEMORY = 2**30
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "COLUMNS": "200",
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUTF8": "1",
    "ANONYMIZED_TELEMETRY": "False",
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """How a child ended."""

    code: int | None  # None where it was killed
    signal: int | None
    late: bool
    memory: int
    out: str
    err: str


class Sandbox:
    """A server that runs commands, one at a time.

    After `cpu` seconds of work, or `wall` seconds, a child counts as one that hangs. `preload` has
    further modules to import before the first fork.
    """

    def __init__(self, cpu=60, wall=300, preload=()):
        self.limits = {"cpu": cpu, "wall": wall}
        paths = [str(ROOT / "src"), str(ROOT)]
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.sandbox", *preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def run(self, arguments, folder, *, roomy=False, planted=None):
        """Run `nnnorm` with arguments in a folder; `planted` names a fault to put into it."""
        request = {"arguments": arguments, "folder": str(folder), "planted": planted}
        return self._ask(call="command", roomy=roomy, **request)

    def call(self, module, function, *arguments):
        """Call a function of a module of the attack in a child; its result passes as JSON."""
        name = [module, function]
        done = self._ask(call=name, arguments=arguments, folder=str(ROOT), roomy=True)
        if done.code:
            raise RuntimeError(done.err)
        return json.loads(done.out) if done.code == 0 else None

    def _ask(self, **request):
        self._server.stdin.write(json.dumps({**self.limits, **request}) + "\n")
        self._server.stdin.flush()
        return Done(**json.loads(self._server.stdout.readline()))


def serve():
    """Answer requests until the input ends."""
    # What is heavy and may be forked; LanceDB, Chroma and Milvus start threads when imported.
    light = ("pyarrow.parquet", "safetensors.numpy", "faiss", "usearch.index")
    for name in (*light, *sys.argv[1:]):
        with contextlib.suppress(ImportError):
            __import__(name)
    command = _load_command()
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), command)), flush=True)


def _load_command():
    """The command line, with everything imported that all commands need."""
    from nnnorm.cli.app import app, load_commands

    load_commands()
    command = get_command(app)
    for arguments in (["info"], ["fit", "--help"]):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            command(arguments, prog_name="nnnorm")
    return command


def _answer(request, command):
    out, err = os.memfd_create("out"), os.memfd_create("err")
    child = os.fork()
    if child == 0:
        _be_child(request, command, out, err)
    late, end = False, time.monotonic() + request["wall"]
    pause = 0.001
    while True:
        pid, status, used = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end and not late:
            late = True
            os.kill(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what it has started
    ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return {
        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": ended,
        "late": late or ended == signal.SIGXCPU,
        "memory": used.ru_maxrss * 1024,
        "out": _content(out),
        "err": _content(err),
    }


def _content(file):
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(file, "rb") as opened:
        return opened.read().decode(errors="backslashreplace")


def _be_child(request, command, out, err):
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb"), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(
            os.fdopen(2, "wb"), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        faulthandler.enable(sys.stderr)
        os.chdir(request["folder"])
        _bound(request)
        _perform(request, command)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code or 0)


def _bound(request):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cpu = request["cpu"]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
    # A file that grows without end fills the disk of the machine that runs this.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**31, 2**31))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if not request["roomy"]:
        with contextlib.suppress(OSError):  # no /proc elsewhere
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            space = pages * resource.getpagesize() + SPACE
            resource.setrlimit(resource.RLIMIT_AS, (space, space))


def _perform(request, command):
    if request["call"] == "command":
        if request["planted"]:
            from tests.attack.planted import plant

            plant(request["planted"])
        command(request["arguments"], prog_name="nnnorm")
        return
    module, function = request["call"]
    made = getattr(__import__(module, fromlist=[function]), function)(*request["arguments"])
    print(json.dumps(made))


if __name__ == "__main__":
    serve()
