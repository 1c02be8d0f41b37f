"""Write the repository's address into pyproject.toml and README.md for a release.

Relative links work on GitHub, but not on PyPI. Only the release workflow knows the address.

    python .github/fill_in_address.py OWNER/NAME TAG
"""

import re
import sys
from pathlib import Path

repository, tag = sys.argv[1:]
owner, name = repository.split("/")
page = f"https://github.com/{repository}"
urls = {
    "Documentation": f"https://{owner}.github.io/{name}/",
    "Repository": page,
    "Issues": f"{page}/issues",
    "Changelog": f"{page}/blob/{tag}/CHANGELOG.md",
}

project = Path("pyproject.toml")
lines = "".join(f'{label} = "{url}"\n' for label, url in urls.items())
text = project.read_text(encoding="utf-8")
project.write_text(text.replace("[project.urls]\n", f"[project.urls]\n{lines}"), encoding="utf-8")

readme = Path("README.md")
text = readme.read_text(encoding="utf-8")
text = text.replace("](../../", f"]({page}/")
text = re.sub(r"\]\((?!https?:|#)", f"]({page}/blob/{tag}/", text)
pictures = f"https://raw.githubusercontent.com/{repository}/{tag}/"
text = re.sub(r'(src|srcset)="(?!https?:)', rf'\g<1>="{pictures}', text)
readme.write_text(text, encoding="utf-8")
