"""A file is written completely or not at all, and only as a regular file."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from nnnorm import files
from nnnorm.errors import NNNormError
from nnnorm.files import check_writable, make_folder, write_whole

OLD, NEW = b"the old bytes", b"the new bytes, which are more"

posix_only = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX file system")


def write_new(file):
    file.write(NEW)


@pytest.fixture
def target(tmp_path):
    """A file with old bytes, alone in its folder."""
    path = tmp_path / "folder" / "bias.bin"
    path.parent.mkdir()
    path.write_bytes(OLD)
    return path


def assert_untouched(target):
    assert target.read_bytes() == OLD
    assert list(target.parent.iterdir()) == [target], "a temporary file was left behind"


@contextlib.contextmanager
def file_size_limit(n_bytes):
    """Let no file of this process grow past `n_bytes`: the write fails as on a full disk."""
    resource = pytest.importorskip("resource", reason="needs setrlimit (POSIX)")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def ordinary_user():
    """Lay down root's right to write anywhere, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    if not hasattr(os, "setresuid"):
        pytest.skip("runs as root, which may write anywhere, and can't become another user here")
    try:
        os.setresuid(65534, 65534, 0)
    except OSError as error:
        pytest.skip(f"runs as root, which may write anywhere, and can't become another: {error}")
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def closed_folder():
    """A folder that nobody may write in, at a place that everybody can reach."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        folder = Path(place) / "closed"
        folder.mkdir()
        (folder / "old.bin").write_bytes(OLD)
        folder.chmod(0o555)
        with ordinary_user():
            reachable = os.access(place, os.X_OK)
        if not reachable:
            pytest.skip(f"the temporary folder {place} is out of reach of an ordinary user")
        yield folder
        folder.chmod(0o755)


# What is written


def test_a_new_file_holds_what_was_written_and_an_old_one_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "new.bin", "new.bin"):
        write_whole(path, write_new)
        assert (tmp_path / "new.bin").read_bytes() == NEW
        assert list(tmp_path.iterdir()) == [tmp_path / "new.bin"]


def test_two_writers_at_once_never_mix(target):
    def write(file):
        file.write(NEW[:5])
        write_whole(target, lambda other: other.write(b"from another writer"))
        assert target.read_bytes() == b"from another writer"
        file.write(NEW[5:])

    write_whole(target, write)
    assert target.read_bytes() == NEW
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("n_readers", [2, 9])
def test_a_target_that_windows_keeps_for_its_readers_is_tried_again(target, monkeypatch, n_readers):
    replace, held = os.replace, [PermissionError(errno.EACCES, "Access is denied")] * n_readers

    def replace_if_free(*paths):
        if held:
            raise held.pop()
        replace(*paths)

    monkeypatch.setattr(files, "_WAITS", (0, 0, 0))
    monkeypatch.setattr(os, "replace", replace_if_free)
    if n_readers > 3:
        with pytest.raises(NNNormError, match="Access is denied; nothing was changed"):
            write_whole(target, write_new)
        assert_untouched(target)
    else:
        write_whole(target, write_new)
        assert target.read_bytes() == NEW


@posix_only
def test_a_name_as_long_as_the_file_system_allows_can_be_written(tmp_path):
    path = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    write_whole(path, write_new)
    assert path.read_bytes() == NEW


@posix_only
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_mode_of_a_new_file_honors_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "new.bin", write_new)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.bin").stat().st_mode) == mode


@posix_only
def test_a_symbolic_link_is_followed_and_stays_a_link(target, tmp_path):
    link = tmp_path / "link.bin"
    link.symlink_to(target)
    write_whole(link, write_new)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert target.read_bytes() == NEW
    assert sorted(tmp_path.iterdir()) == [target.parent, link]


# What stops half-way


@pytest.mark.parametrize(
    "error", [RuntimeError, KeyboardInterrupt, SystemExit, MemoryError, NNNormError]
)
def test_a_stop_in_the_middle_leaves_the_old_file_and_no_other(target, error):
    def write(file):
        file.write(NEW[:5])
        raise error("stopped")

    with pytest.raises(error, match=r"^stopped$"):
        write_whole(target, write)
    assert_untouched(target)


@pytest.mark.parametrize(
    "n_bytes",
    [pytest.param(2**20, id="while-writing"), pytest.param(6000, id="while-flushing-the-buffer")],
)
def test_a_full_disk_leaves_the_old_file_and_no_other(target, n_bytes):
    with file_size_limit(4096), pytest.raises(NNNormError) as caught:
        write_whole(target, lambda file: file.write(bytes(n_bytes)))
    assert str(caught.value) == (
        f"cannot write {target}: {os.strerror(errno.EFBIG)}; nothing was changed, "
        "free some space or choose another path"
    )
    assert_untouched(target)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_at_the_last_step_leaves_the_old_file(target, monkeypatch, step):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(NNNormError, match="the disk is full; nothing was changed"):
        write_whole(target, write_new)
    assert_untouched(target)


def test_bytes_are_on_disk_before_the_old_file_goes(target, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *to: (steps.append("replace"), replace(*to)))
    write_whole(target, write_new)
    assert steps == ["fsync", "replace"]


# Where nothing can be written


def refusal(path):
    """What `check_writable` says; `write_whole` must say the same before it writes."""
    with pytest.raises(NNNormError) as early:
        check_writable(path)
    with pytest.raises(NNNormError) as late:
        write_whole(path, lambda file: pytest.fail("something was written"))
    assert str(early.value) == str(late.value)
    return str(early.value)


def test_a_folder_is_refused(tmp_path):
    assert refusal(tmp_path) == (
        f"cannot write {tmp_path}: it is a folder; pass a file name inside it"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused_and_not_made(tmp_path):
    path = tmp_path / "runs" / "bias.bin"
    assert refusal(path) == (
        f"cannot write {path}: the folder {tmp_path.resolve() / 'runs'} does not exist; "
        "create it first"
    )
    assert list(tmp_path.iterdir()) == []


@posix_only
def test_a_pipe_and_a_link_to_a_folder_are_refused(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path)
    assert refusal(pipe) == f"cannot write {pipe}: it is not a regular file; choose another name"
    assert refusal(link) == f"cannot write {link}: it is a folder; pass a file name inside it"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


@posix_only
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_without_permission_is_refused(closed_folder, mode):
    path = closed_folder / "old.bin"
    closed_folder.chmod(mode)
    try:
        with ordinary_user():
            message = refusal(path)
    finally:
        closed_folder.chmod(0o755)
    reason = f"no permission to write in {closed_folder.resolve()}; choose another folder"
    assert message == f"cannot write {path}: {reason}"
    assert_untouched(path)


@posix_only
def test_a_name_too_long_is_refused_before_the_work(tmp_path):
    path = tmp_path / ("n" * 256)
    assert refusal(path) == f"cannot write {path}: the file name is too long; choose another name"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_checked_is_untouched_and_one_that_is_replaced_keeps_its_mode(target):
    assert check_writable(str(target)) == target.resolve()
    assert_untouched(target)
    target.chmod(0o600)
    mode = target.stat().st_mode  # Windows has fewer modes
    write_whole(target, write_new)
    assert target.read_bytes() == NEW
    assert target.stat().st_mode == mode


# --- folders ------------------------------------------------------------------------------------


def test_a_folder_is_made_with_those_above_it_and_may_be_there_already(tmp_path):
    folder = tmp_path / "a" / "b"
    assert make_folder(folder) == make_folder(folder) == folder
    assert list(folder.iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_named(target):
    with pytest.raises(NNNormError) as error:
        make_folder(target)
    expected = f"cannot make the folder {target}: it is a file; choose another"
    assert str(error.value) == expected


@posix_only
def test_a_folder_that_takes_no_files_is_refused(closed_folder):
    with ordinary_user(), pytest.raises(NNNormError, match="no permission to write in"):
        make_folder(closed_folder)
    with ordinary_user(), pytest.raises(NNNormError, match=r"cannot make the folder .*new: Perm"):
        make_folder(closed_folder / "new")
