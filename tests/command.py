"""Runs a command in this process as a shell would, and checks its errors."""

import json

from typer.testing import CliRunner

from nnnorm.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="nnnorm")


def run_json(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def assert_fails(result, words, code=1):
    """One sentence on stderr, nothing on stdout, no traceback; code 2 also tells the usage."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    message = result.stderr
    if code == 1:
        message = message[f"\n{message}".rindex("\nError: ") :]
    assert words in " ".join(message.split())
