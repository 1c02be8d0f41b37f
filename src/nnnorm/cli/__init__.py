"""The command `nnnorm`: arguments in, tables for people or JSON for programs out.

Each command is one short function; what it needs beyond the core is imported inside it, so that
`--help` answers at once. `app.py` holds what all commands share. The help lists the commands in the
order in which they are imported here.
"""

import sys

try:
    from nnnorm.cli import core, cluster, study, bank, corrector, encode, scan, index  # noqa: I001
    from nnnorm.cli import explore, audit, plan, table, reproduce
    from nnnorm.cli.app import app
except KeyboardInterrupt:  # the imports take a second, in which no handler of the app is active
    sys.exit("Error: interrupted")


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="nnnorm")
    except KeyboardInterrupt:
        sys.exit("Error: interrupted")
