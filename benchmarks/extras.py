"""Install and import each extra of pyproject.toml in a fresh environment.

    python benchmarks/extras.py                    # all of them: `make extras`
    python benchmarks/extras.py --only parquet     # one; the others stay as they were measured
    python benchmarks/extras.py --skip open-clip

For each extra, the script creates a virtual environment and installs the package with only that
extra (and constraints.txt). It imports every module of the extra's libraries and of nnnorm, and
measures the size on disk. Then it runs the tests that `make test` skips because their libraries are
too large. The first row is the core. The script prints all sizes, writes results/extras.json and
updates docs/guide/install.md. If an extra fails, the exit code is 1, and neither file changes.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from paste import paste

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "extras.json"
CORE = "(core)"
# Tests with libraries that are too large for `make test`.
TESTS = {"mteb": "tests/integrations/test_mteb.py", "spark": "tests/test_distributed.py"}

# Runs in the fresh environment; argv has the names of the extra's distributions.
CHECK = """
import importlib, json, pkgutil, re, sys
from importlib.metadata import packages_distributions
import nnnorm
plain = lambda name: re.sub("[-_.]+", "-", name).lower()
wanted = set(map(plain, sys.argv[1:]))
found = {module: set(map(plain, dists)) & wanted
         for module, dists in packages_distributions().items()
         if module.isidentifier() and not module.startswith("_")
         and module != "adbc_driver_duckdb"}  # DuckDB's driver for a library that isn't installed
own = sorted(module for module, dists in found.items() if dists)
if absent := wanted - set().union(*found.values()):
    sys.exit(f"installed, but with no module to import: {', '.join(sorted(absent))}")
for module in own:
    importlib.import_module(module)
for found in pkgutil.walk_packages(nnnorm.__path__, "nnnorm."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except nnnorm.errors.MissingExtraError as error:  # expected for another extra
            if not found.name.startswith("nnnorm.integrations.") or str(error).split()[0] in own:
                raise
print(json.dumps(own))
"""


def read_extras():
    """Return extras and the names of their distributions, without `dev` and `docs`."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10: use the copy in pip
        from pip._vendor import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {CORE: project["dependencies"], **project["optional-dependencies"]}
    for own in ("dev", "docs"):
        extras.pop(own)
    return {extra: names_of(requirements, extras) for extra, requirements in extras.items()}


def names_of(requirements, extras):
    """Return names of distributions; `nnnorm[faiss,…]` is replaced by those of its extras."""
    names = {}
    for requirement in requirements:
        if own := re.fullmatch(r"nnnorm\[(.*)\]", requirement):
            for extra in own[1].split(","):
                names |= dict.fromkeys(names_of(extras[extra.strip()], extras))
        else:
            names[re.match(r"[\w.-]+", requirement)[0]] = None
    return list(names)


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        message = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(message[-1] if message else f"exit code {done.returncode}")
    return done.stdout


def check(extra, distributions):
    """Install and import one extra; return its facts, or its error."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        facts = {"libraries": distributions}
        try:
            venv.create(folder, with_pip=True)
            python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
            before = size_of(folder)
            target = str(ROOT) if extra == CORE else f"{ROOT}[{extra}]"
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run(*pip, "--constraint", ROOT / "constraints.txt", target)
            facts["megabytes"] = round((size_of(folder) - before) / 1e6)
            facts["modules"] = json.loads(run(python, "-c", CHECK, *distributions).splitlines()[-1])
            if extra in TESTS:
                run(*pip, "--constraint", ROOT / "constraints.txt", "pytest", "hypothesis")
                run(python, "-m", "pytest", "-q", ROOT / TESTS[extra])
        except (RuntimeError, subprocess.SubprocessError) as error:
            facts["error"] = str(error)
        facts["seconds"] = round(time.perf_counter() - started)
        return facts


def size_of(folder):
    """Return the size of all files in bytes, without bytecode."""
    files = (path for path in Path(folder).rglob("*") if "__pycache__" not in path.parts)
    return sum(path.lstat().st_size for path in files if path.is_file() and not path.is_symlink())


def tables(results):
    """The sizes, as the docs list them."""
    sizes = []
    for extra, facts in results.get("extras", {}).items():
        name = "core alone" if extra == CORE else f"`{extra}`"
        sizes.append(f"{name} {'failed' if 'error' in facts else format(facts['megabytes'], ',')}")
    return f"Size on disk, in MB: {'; '.join(sizes)}.\n" if sizes else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="only this extra (repeatable)")
    parser.add_argument("--skip", action="append", default=[], help="skip this extra (repeatable)")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    args = parser.parse_args()
    extras = read_extras()
    unknown = {*args.skip, *(args.only or [])} - extras.keys()
    if unknown:
        print(f"no such extra: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [e for e in extras if e not in args.skip and (args.only is None or e in args.only)]
    measured = {}
    for extra in chosen:
        facts = measured[extra] = check(extra, extras[extra])
        said = facts.get("error") or f"{facts['megabytes']:,} MB; imports {facts['modules']}"
        print(f"{extra}: {said} ({facts['seconds']} s)", file=sys.stderr, flush=True)
    stored = {}
    if args.output.is_file():
        stored = json.loads(args.output.read_text(encoding="utf-8"))
    known = {**stored.get("extras", {}), **measured}
    results = {
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "extras": {extra: known[extra] for extra in extras if extra in known},
    }
    print(tables(results))
    if any("error" in facts for facts in measured.values()):
        return 1
    args.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if args.output == OUTPUT and not paste("guide/install.md", tables(stored), tables(results)):
        print("docs/guide/install.md has other sizes; put these there", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
