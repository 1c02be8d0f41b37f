"""All integrations: imports, and the message if a library is missing."""

import importlib
import subprocess
import sys

import pytest

from nnnorm.errors import MissingExtraError

LIBRARIES = {
    "langchain": ("langchain_core", "langchain"),
    "llama_index": ("llama_index", "llama-index"),
    "haystack": ("haystack", "haystack"),
}


class Absent:
    """An import hook that answers for a library as if it were not installed."""

    def __init__(self, library):
        self.library = library

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_answered_with_the_extra_that_brings_it(name, monkeypatch):
    library, extra = LIBRARIES[name]
    loaded = [module for module in sys.modules if module.partition(".")[0] == library]
    for module in [f"nnnorm.integrations.{name}", *loaded]:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(library), *sys.meta_path])
    with pytest.raises(MissingExtraError) as error:
        importlib.import_module(f"nnnorm.integrations.{name}")
    assert str(error.value) == (
        f"{library} is needed, but not installed; run: pip install 'nnnorm[{extra}]'"
    )


def test_the_room_and_the_backend_of_mteb_load_no_library():
    code = (
        "import sys, nnnorm.integrations.mteb\nprint(*{m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    libraries = {library for library, _ in LIBRARIES.values()}
    assert not set(done.stdout.split()) & (libraries | {"mteb", "torch"})
