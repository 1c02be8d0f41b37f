import pytest

from tests.servers import clear_memory


@pytest.fixture(autouse=True)
def leave_no_files_in_memory():
    yield
    clear_memory()
