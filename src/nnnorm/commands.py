"""Suggested commands in shell syntax, as parts that must not be broken across lines."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any


def write_command(name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the parts of a command; None leaves out an option, and a list repeats it."""
    parts = [f"nnnorm {name}"]
    for option, given in options.items():
        flag = option if option.startswith("-") else f"--{option.replace('_', '-')}"
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, bool):
                parts.append(flag if value else f"--no{flag[1:]}")
            elif value is not None:
                text = shlex.quote(str(value))
                parts.append(f"{flag} {text}" if option else text)
    return parts


def write_fit(
    files: Mapping[str, Any], method: str, params: Mapping[str, Any], normalize: bool | None
) -> list[str]:
    """Write the command that fits a setting, without parameters that are automatic."""
    given = {name: value for name, value in params.items() if value != "auto"}
    options = {**files, "method": None if method == "nnn" else method}
    options |= {name: given.pop(name) for name in ("reference_k", "alpha") if name in given}
    options["set"] = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in given.items()
    ]
    options["-o"] = "bias.safetensors"
    if method == "nnn":  # new items need it; gated methods and Sinkhorn have none
        options["save_corrector"] = "corrector.safetensors"
    return write_command("fit", {**options, "normalize": normalize})


def wrap_command(parts: Sequence[str], columns: int) -> str:
    """Join the parts of a command; if it is long, break it into lines that end in a backslash."""
    rows = [parts[0]]
    for part in parts[1:]:
        if len(rows[-1]) + len(part) + len("  \\") > columns:
            rows.append("   ")
        rows[-1] += f" {part}"
    return " \\\n".join(rows)
