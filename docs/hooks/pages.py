"""Add files outside docs/ to the site, and convert links that are written for the repository.

README.md is the home page. Links are relative to their own file in the repository. This hook
converts them to links of the site; a link to a file that isn't a page (a source file) becomes plain
text. If a picture has a dark variant (`name-dark.png`), the site shows the one that matches its
color scheme. The notebook becomes Markdown: its code and the stored output.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Files of the repository, and their pages on the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/shapes/README.md": "shapes.md",
    "reproduction/README.md": "reproduction.md",
    "examples/nnnorm.ipynb": "guide/notebook.md",
    "src/nnnorm/explore/static/icon.svg": "images/icon.svg",
}
FILES = {page: file for file, page in PAGES.items()}

_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(
    r"<picture>\s*<source [^>]*dark[^>]*srcset=\"(?P<dark>[^\"]+)\"[^>]*>\s*"
    r"<img alt=\"(?P<alt>[^\"]*)\" src=\"(?P<light>[^\"]+)\" (?P<width>width=[^>]+)>\s*</picture>"
)
_INTERVAL = re.compile(r"(?<=\[)([−+]?[\d.]+,) (?=[−+]?[\d.]+\])")
_SHOWN = "".join(
    rf"![\g<alt>](\g<{theme}>#only-{theme}){{\g<width>}}" for theme in ("light", "dark")
)


def on_files(files, config):
    """Add the pages whose files are outside docs/."""
    for file, page in PAGES.items():
        path = ROOT / file
        text = path.read_text(encoding="utf-8")
        content = show_notebook(text) if path.suffix == ".ipynb" else text
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown, page, config, files: Files):
    """Convert links and pictures of the repository to those of the site."""
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation"]  # the home page has no section
        markdown = re.sub(r"^\[!\[.*\n", "", markdown, flags=re.MULTILINE)  # no badges here
    markdown = _PICTURE.sub(_SHOWN, markdown)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [_LINK.sub(lambda link: _site_link(link, uri, files), part) for part in parts[::2]]
    # Cells of tables are wrapped before an interval, not in it.
    parts[::2] = [
        re.sub(r"^\|.*", lambda row: _INTERVAL.sub(r"\1&nbsp;", row[0]), part, flags=re.MULTILINE)
        for part in parts[::2]
    ]
    return "".join(parts)


def on_page_content(html, page, config, files):
    """Keep short names in code on one line: browsers break them after a hyphen."""
    return re.sub(r"(?<=<code)(?=>[^<>]{1,28}</code>)", ' class="whole"', html)


def _site_link(link, uri, files):
    mark, label, target = link.groups()
    path, hash_, anchor = target.partition("#")
    if re.match(r"[a-z]+:", target) or not path:
        return link[0]
    inside = FILES.get(uri, f"docs/{uri}")  # the page's path in the repository
    asked = posixpath.normpath(posixpath.join(posixpath.dirname(inside), path))
    found = PAGES.get(asked, asked.removeprefix("docs/"))
    if asked not in PAGES and (
        not asked.startswith("docs/") or not files.get_file_from_path(found)
    ):
        # A broken link stays, so the build reports it.
        return label if (ROOT / asked).exists() else link[0]
    start = posixpath.dirname(uri) or "."
    shown = f"{mark}[{label}]({posixpath.relpath(found, start)}"
    stem, _, suffix = found.rpartition(".")
    if mark and not anchor and files.get_file_from_path(dark := f"{stem}-dark.{suffix}"):
        dark = f"{mark}[{label}]({posixpath.relpath(dark, start)}"
        return f"{shown}#only-light){dark}#only-dark)"
    return f"{shown}{hash_}{anchor})"


def show_notebook(text):
    """Convert a notebook to Markdown: texts, code, and stored output."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if shown := "".join(output.get("text", "")).rstrip():
                parts.append(f"```text\n{shown}\n```")
            if picture := output.get("data", {}).get("image/png"):
                parts.append(f'<img alt="Plot" src="data:image/png;base64,{picture.strip()}">')
    return "\n\n".join(parts)
