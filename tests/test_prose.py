"""The words of STYLE: one name per thing, plain sentences, American spelling.

Code, links and quoted words are left out. Docs, docstrings, comments and messages are read.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "reproduction/*.md")
    for path in ROOT.glob(pattern)
)
MODULES = sorted(
    path.relative_to(ROOT)
    for folder in ("src", "reproduction", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)

# What is never written, and what is written instead.
INSTEAD = {
    r"anew": "again",
    r"mend(s|ed|ing)?": "fix",
    r"refus(e|es|ed|al)": "reject",
    r"foreign (bank|banks|queries)": "mismatched past queries",
    r"quarantined?|suspects?": "outliers",
    r"planted": "adversarial",
    r"stand-?ins?|made data": "synthetic data",
    r"generations?": "version",
    r"first places?": "top-1",
    r"own rule|second rule|default rule": "automatic settings",
    r"is no (?!longer|more|less)\w": "isn't a, has no",
    r"beside": "next to",
    r"former": "previous",
    r"dealt out|flattered|seen to": "plain words",
    r"per cent": "percent",
    r"strangers?|twins?|verdicts|handed over|at hand": "plain words",
    r"tells|foretells?|speaks?": "shows, prints, returns",
    r"comes? first": "is top-1",
    r"(do|does|did) harm": "make results worse",
    r"cut short": "truncated",
    r"in turns": "alternating, interleaved",
    r"\w*(normalis|centred|neighbour|behaviour|favour|optimis|initialis)\w*": "American spelling",
    r"colours?|licence|(un)?labelled": "American spelling",
}
NEVER = re.compile("|".join(rf"\b({words})\b" for words in INSTEAD), re.IGNORECASE)
# A condition starts with "if" or "when"; where something goes or comes from is a place.
WHERE = re.compile(
    r"(?:^|(?<=[.;:] ))Where (?:it is|it's|there|no|one|you|that)\b[^?]*$", re.MULTILINE
)


def page_text(path: Path) -> str:
    """The prose of a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    text = re.sub(r"^( *)```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return plain(text)


def plain(text: str) -> str:
    """Text without code, link targets and quoted words."""
    text = re.sub(r"``.*?``|`[^`]*`", "…", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|<[^>]*>", " ", text)
    return re.sub(r"[\"“][^\"”\n]{1,80}[\"”]", "…", text)


def module_text(path: Path) -> str:
    """Docstrings, comments and messages of a module: all strings with a space in them."""
    source = (ROOT / path).read_text(encoding="utf-8")
    found = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found.append(token.string.lstrip("# "))
    return "\n".join(plain(text) for text in found)


def faults(text: str) -> list[str]:
    found = [*NEVER.finditer(text), *WHERE.finditer(text)]
    return [text[max(0, m.start() - 30) : m.end() + 30].replace("\n", " ") for m in found]


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_uses_the_words_of_the_glossary(path):
    assert faults(page_text(path)) == []


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_uses_the_words_of_the_glossary(path):
    assert faults(module_text(path)) == []
