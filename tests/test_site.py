"""The docs site builds without warnings, is complete, and loads nothing from other servers."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command

import nnnorm
from nnnorm.cli.app import app, load_commands, show_option

pytest.importorskip("material", reason="the site needs `pip install '.[docs]'`")
pytest.importorskip("mkdocstrings_handlers", reason="the site needs `pip install '.[docs]'`")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """What a page links to, what it loads, its ids and its text."""

    def __init__(self, html):
        super().__init__()
        self.links, self.loads, self.ids, self.text = [], [], set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.add(found.get("id"))
        if tag == "a":
            self.links.append(found.get("href") or "")
        elif tag == "link" and found.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(found["href"])
        elif tag in ("script", "img", "source", "iframe"):
            self.loads.append(found.get("src") or found.get("srcset") or "")

    def handle_data(self, data):
        self.text += data


def test_the_site_builds_strictly_is_complete_and_asks_no_other_server(tmp_path):
    """One test, since the site is built once: any warning of the build is an error."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    for path, page in pages.items():
        check_links(path, page, pages)
        foreign = [link for link in page.loads if re.match(r"(https?:)?//", link)]
        assert not foreign, f"{path} loads {foreign}"
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text("utf-8"))
    check_commands(pages[tmp_path / "reference" / "commands" / "index.html"])
    check_names(pages[tmp_path / "reference" / "python" / "index.html"])
    pictures = {"images/hub-light.png#only-light", "images/hub-dark.png#only-dark"}
    assert pictures <= set(pages[tmp_path / "index.html"].loads)  # which is the README
    plots = {"../images/evidence.png#only-light", "../images/evidence-dark.png#only-dark"}
    assert plots <= set(pages[tmp_path / "evidence" / "index.html"].loads)


def check_links(path, page, pages):
    """Every link and everything that is loaded is there, with its anchor."""
    for link in [*page.links, *page.loads]:
        target = urlsplit(link)
        if target.scheme or link.startswith("/"):
            continue  # another site, or the page for missing pages
        linked = (path.parent / unquote(target.path)).resolve() if target.path else path
        linked = linked / "index.html" if linked.is_dir() else linked
        assert linked.exists(), f"{path} links to {link}"
        if target.fragment and linked in pages:
            assert unquote(target.fragment) in pages[linked].ids, f"{path} links to {link}"


def check_commands(page):
    """Every command is there, with all its options and what they mean."""
    described = " ".join(page.text.split())
    load_commands()
    for name, command in get_command(app).commands.items():
        assert f"nnnorm-{name}" in page.ids
        for parameter in [] if hasattr(command, "commands") else command.params:
            written, _ = show_option(parameter)
            assert written in page.text, f"{name} {written}"
            assert " ".join((parameter.help or "").replace("`", "").split()) in described


def check_names(page):
    """Every public name is there, with its docstring."""
    described = " ".join(page.text.split())
    for name in nnnorm.__all__:
        if not name.startswith("__"):
            assert name.lower() in page.ids
            doc = re.split(r"\n\n", getattr(nnnorm, name).__doc__)[0]
            assert " ".join(re.sub("`+", "", doc).split()) in described, name
