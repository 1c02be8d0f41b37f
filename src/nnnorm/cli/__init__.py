"""The command `nnnorm`, which prints tables, or JSON for programs.

app         the app, its errors, and what makes a function a command
options     every option's line in the help
inputs      lists of ids, groups, and settings
output      results, progress, and commands to run next
core        fit, search, info
evaluation  check, evaluate, tune, compare, audit
corrector   extend, drift, scan
index       index build, search, add and so on
bank        bank
data        encode, dataset
explore     explore
demo        demo
"""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from nnnorm.cli.app import app  # takes a moment, in which Ctrl-C is handled too

        app(prog_name="nnnorm")
    except KeyboardInterrupt:
        sys.stderr.write("Error: interrupted\n")
        sys.exit(130)
