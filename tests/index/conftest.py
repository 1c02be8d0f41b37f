import pytest

from tests.servers import clear_memory


@pytest.fixture
def store(case, tmp_path):
    """The collection of this test, as a new store each time it is called."""
    opened = []

    def make(name="photos"):
        opened.append(case.make(tmp_path, name))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
    clear_memory()
