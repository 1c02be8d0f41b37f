"""The command `nnnorm`, which prints tables, or JSON for programs.

app         the app, its error handling, and the decorator of commands
options     the help line of every option
inputs      lists of ids, groups, and settings
output      printing of results, progress and commands to run next
core        fit, search, info
evaluation  check, evaluate, tune, compare, audit
corrector   extend, drift, scan
index       index build, search, add and others
bank        bank
data        encode, dataset
explore     explore
demo        demo
"""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from nnnorm.cli.app import app  # this import is slow, and Ctrl-C may come during it

        app(prog_name="nnnorm")
    except KeyboardInterrupt:
        sys.stderr.write("Error: interrupted\n")
        sys.exit(130)
