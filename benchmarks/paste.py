"""Replace the tables of a page in docs/."""

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def paste(page: str, old: str, new: str) -> bool:
    """Replace the tables of a page; return False if the old ones aren't on it."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    if not old.strip() or old.strip() not in text:
        return False
    path.write_text(text.replace(old.strip(), new.strip()), encoding="utf-8")
    return True
