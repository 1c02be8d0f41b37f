"""Errors, and `require`: only a missing library causes an install command."""

import sys

import pytest

import nnnorm
from nnnorm.errors import MissingExtraError, NNNormError, first_line, require


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the module path, to put libraries in."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_errors_are_public_and_of_the_usual_types():
    assert nnnorm.NNNormError is NNNormError
    assert issubclass(NNNormError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
    assert not issubclass(MissingExtraError, NNNormError)


@pytest.mark.parametrize("module", ["no_such_library_9f3", "no_such_library_9f3.inner"])
def test_an_absent_library_names_the_extra_that_brings_it(module):
    with pytest.raises(MissingExtraError) as caught:
        require(module, "parquet")
    assert str(caught.value) == (
        "no_such_library_9f3 is needed, but not installed; run: pip install 'nnnorm[parquet]'"
    )


def test_a_library_shut_out_by_the_import_system_counts_as_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "json", None)
    with pytest.raises(MissingExtraError, match=r"^json is needed"):
        require("json", "none")


def test_the_install_command_is_not_buried_under_the_import_error():
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_library_9f3", "parquet")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("lost", ["its_own_dependency_9f3", "torn_9f3.lost"])
def test_a_library_that_lacks_a_part_shows_its_own_error(site, lost):
    (site / "torn_9f3").mkdir()
    (site / "torn_9f3" / "__init__.py").write_text(f"import {lost}\n")
    with pytest.raises(ModuleNotFoundError) as caught:
        require("torn_9f3", "parquet")
    assert not isinstance(caught.value, MissingExtraError)
    assert str(caught.value) == f"No module named '{lost}'"


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "OSError"])
def test_a_library_that_breaks_as_it_loads_shows_its_own_error(site, error):
    module = f"broken_by_{error.lower()}_9f3"
    (site / f"{module}.py").write_text(f"raise {error}('libfoo.so.3 has the wrong version')\n")
    with pytest.raises(Exception, match=r"^libfoo\.so\.3 has the wrong version$") as caught:
        require(module, "parquet")
    assert type(caught.value).__name__ == error


def test_an_error_is_quoted_by_its_first_line_or_its_type():
    assert first_line(ValueError("cut short\nat byte 12\n")) == "cut short"
    assert first_line(EOFError()) == "EOFError"
    assert first_line(OSError("\nsecond line")) == "OSError"
