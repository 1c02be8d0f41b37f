"""The command `nnnorm`: arguments in, tables for people or JSON for programs out.

Each command is one short function; what it needs beyond the core is imported inside it, so that
`--help` answers at once. `app.py` holds what all commands share, and the table of the commands: a
module is imported when one of its commands is asked for.
"""

import sys

try:
    from nnnorm.cli.app import app, load_commands
except KeyboardInterrupt:  # imports take a moment in which no handler of the app is active
    sys.exit("Error: interrupted")


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="nnnorm")
    except KeyboardInterrupt:
        sys.exit("Error: interrupted")
