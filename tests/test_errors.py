"""The two errors, and `require`: only a library that is absent becomes an install command."""

import json
import sys

import pytest

import nnnorm
from nnnorm.errors import MissingExtraError, NNNormError, first_line, require


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the module path, to put libraries in."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_bad_input_is_a_value_error():
    assert issubclass(NNNormError, ValueError)


def test_a_missing_extra_is_an_import_error():
    assert issubclass(MissingExtraError, ImportError)
    assert not issubclass(MissingExtraError, NNNormError)


def test_both_errors_are_public():
    assert nnnorm.NNNormError is NNNormError
    assert nnnorm.errors.MissingExtraError is MissingExtraError


def test_require_returns_the_module():
    assert require("json", "none") is json


def test_require_returns_the_inner_module_of_a_dotted_name():
    assert require("json.decoder", "none") is json.decoder


def test_an_absent_library_names_the_extra_that_brings_it():
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_library_9f3", "parquet")
    assert str(caught.value) == (
        "no_such_library_9f3 is not installed and this needs it; run: pip install 'nnnorm[parquet]'"
    )


def test_a_dotted_name_blames_the_library_and_not_its_inner_module():
    with pytest.raises(MissingExtraError, match=r"^no_such_library_9f3 is not installed"):
        require("no_such_library_9f3.inner", "parquet")


def test_a_library_shut_out_by_the_import_system_counts_as_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "json", None)
    with pytest.raises(MissingExtraError, match=r"^json is not installed"):
        require("json", "none")


def test_the_install_command_is_not_buried_under_the_import_error():
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_library_9f3", "parquet")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_library_that_lacks_a_library_of_its_own_shows_its_own_error(site):
    (site / "half_installed_9f3.py").write_text("import its_own_dependency_9f3\n")
    with pytest.raises(ModuleNotFoundError) as caught:
        require("half_installed_9f3", "parquet")
    assert not isinstance(caught.value, MissingExtraError)
    assert str(caught.value) == "No module named 'its_own_dependency_9f3'"


def test_a_library_that_lacks_a_file_of_its_own_shows_its_own_error(site):
    (site / "torn_9f3").mkdir()
    (site / "torn_9f3" / "__init__.py").write_text("import torn_9f3.lost\n")
    with pytest.raises(ModuleNotFoundError) as caught:
        require("torn_9f3", "parquet")
    assert not isinstance(caught.value, MissingExtraError)
    assert str(caught.value) == "No module named 'torn_9f3.lost'"


def test_an_inner_module_that_an_installed_library_lacks_shows_its_own_error():
    with pytest.raises(ModuleNotFoundError, match=r"json\.no_such_part") as caught:
        require("json.no_such_part", "none")
    assert not isinstance(caught.value, MissingExtraError)


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "OSError"])
def test_a_library_that_breaks_as_it_loads_shows_its_own_error(site, error):
    module = f"broken_by_{error.lower()}_9f3"
    (site / f"{module}.py").write_text(f"raise {error}('libfoo.so.3 has the wrong version')\n")
    with pytest.raises(Exception, match=r"^libfoo\.so\.3 has the wrong version$") as caught:
        require(module, "parquet")
    assert type(caught.value).__name__ == error


def test_an_error_is_quoted_by_its_first_line():
    assert first_line(ValueError("cut short\nat byte 12\n")) == "cut short"


def test_an_error_that_says_nothing_is_quoted_by_its_kind():
    assert first_line(EOFError()) == "EOFError"
    assert first_line(OSError("\nsecond line")) == "OSError"
