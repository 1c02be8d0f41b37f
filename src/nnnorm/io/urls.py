"""URLs and addresses in messages, without what is secret in them."""

import re
from urllib.parse import unquote

# User and password; up to the last @, since a password may hold one.
_USER = re.compile(r"//\S*@")
_SECRET = re.compile(r"(?i)(\w*(?:pass|token|secret|key)\w*\s*=\s*)('[^']*'|[^\s&]+)")


def show_url(url: object) -> str:
    """Write a URL or an address without user, password and keys, for messages and facts."""
    return _SECRET.sub(r"\1…", _USER.sub("//…@", str(url)))


def hide_secrets(text: str, address: str, *others: str | None) -> str:
    """Remove the password of an address, and other secrets, from what an engine's library says."""
    found = _USER.search(address)
    _, _, password = (found.group()[2:-1] if found else "").partition(":")
    for secret in (password, unquote(password), *others):
        if secret:
            text = text.replace(secret, "…")
    return show_url(text)
