"""Write `golden.json`: all results, or those that are named."""

import json
import sys
import tempfile
from pathlib import Path

from tests.golden.calls import CALLS, compute

FILE = Path(__file__).parent / "golden.json"


def main(names: list[str]) -> None:
    found = json.loads(FILE.read_text()) if names and FILE.exists() else {}
    for name in names or sorted(CALLS):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found[name] = compute(name, Path(folder))
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}")
    FILE.write_text(json.dumps({name: found[name] for name in sorted(found)}, indent=None) + "\n")
    print(f"{len(found)} results, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
