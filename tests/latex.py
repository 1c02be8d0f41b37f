"""Whether LaTeX of ours compiles: by pdflatex where it is installed, and by a reader of our own.

The reader knows what our documents are made of, and refuses everything else: environments and
braces that are not balanced, a row with another number of cells than its table has columns, a
command or a letter that plain LaTeX with these packages does not have, and tables that are wider
than the page by the widths of Computer Modern.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

_PACKAGES = {"geometry", "booktabs", "longtable"}
_COMMANDS = {
    *("documentclass", "usepackage", "setlength", "begin", "end", "clearpage"),
    *("LTcapwidth", "textwidth", "tabcolsep", "footnotesize", "scriptsize", "tiny"),
    *("caption", "toprule", "midrule", "bottomrule", "cmidrule", "addlinespace"),
    *("endfirsthead", "endhead", "endfoot", "multicolumn", "textbf", "quad"),
    *("textbackslash", "textasciicircum", "textasciitilde"),
    *("alpha", "beta", "lambda", "tau", "Delta", "pm", "times", "to", "cdot"),
}
_LETTERS = "–…éèüöäß"  # beyond ASCII, known to pdflatex by itself
_PAGE = 267 / 25.4 * 72.27  # A4 across, without margins of 15 mm
_DIGIT = {"footnotesize": 4.25, "scriptsize": 3.99, "tiny": 3.4}  # points, in Computer Modern


def assert_compiles(path):
    """Read the document, and compile it where pdflatex is installed."""
    faults = find_faults(Path(path).read_text(encoding="utf-8"))
    assert not faults, faults[:5]
    if shutil.which("pdflatex") is not None:
        with tempfile.TemporaryDirectory() as folder:
            command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error"]
            done = subprocess.run(
                [*command, f"-output-directory={folder}", str(path)], capture_output=True
            )
            said = done.stdout.decode("latin-1")
        assert done.returncode == 0, said[-2000:]
        assert "Overfull" not in said, said


def find_faults(text):
    """What would not compile, or not fit on a page."""
    plain = re.sub(r"\\[%&_#${}]", "", text)
    faults = [f"unknown command {name}" for name in _unknown_commands(plain)]
    faults += [f"letter {c!r}" for c in set(plain) if ord(c) > 126 and c not in _LETTERS]
    if _is_unbalanced(plain):
        faults.append("braces or dollars are not balanced")
    if (environments := _unbalanced_environments(plain)) is not None:
        faults.append(f"{environments} is not closed")
    packages = set(re.findall(r"\\usepackage(?:\[.*?\])?\{(.*?)\}", plain))
    if {name for some in packages for name in some.split(",")} != _PACKAGES:
        faults.append(f"packages {packages}")
    for size, kinds, body in re.findall(
        r"\{\\(\w+)\\setlength.*?\\begin\{longtable\}\{(.*?)\}\n(.*?)\\end\{longtable\}",
        plain,
        flags=re.DOTALL,
    ):
        faults += _read_table(size, kinds, body)
    return faults


def _unknown_commands(text):
    return sorted(set(re.findall(r"\\([A-Za-z]+)", text)) - _COMMANDS)


def _is_unbalanced(text):
    depth = 0
    for brace in re.findall("[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return True
    return depth != 0 or text.count("$") % 2 != 0


def _unbalanced_environments(text):
    opened = []
    for word, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if word == "begin":
            opened.append(name)
        elif not opened or opened.pop() != name:
            return name
    return opened[-1] if opened else None


def _read_table(size, kinds, body):
    """Faults of one table: cells per row, and its width."""
    n_columns = len(re.sub(r"p\{[\d.]+pt\}?", "p", kinds))
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    faults, widths = [], [0.0] * n_columns
    for row in (row for row in rows if not row.startswith(r"\caption")):
        cells = row.removesuffix(r"\\").split(" & ")
        spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", cell) for cell in cells]
        if sum(int(span.group(1)) if span else 1 for span in spans) != n_columns:
            faults.append(f"{len(cells)} cells in {n_columns} columns: {row[:60]}")
        elif not any(spans):
            shown = [re.sub(r"\\[A-Za-z]+|[{}$]", "", cell).strip() for cell in cells]
            widths = [max(w, _DIGIT[size] * len(s)) for w, s in zip(widths, shown, strict=True)]
    if "p" not in kinds and sum(widths) + 6 * n_columns > _PAGE:
        faults.append(f"about {sum(widths):.0f} pt wide, a page has {_PAGE:.0f}")
    return faults
