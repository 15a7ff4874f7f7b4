"""Files are written whole or not at all."""

import hashlib
import json
import os
import socket
import subprocess
import sys

import pytest

from formerlab.errors import UserError
from formerlab.files import read_json, replacing, sha256, write_json, write_text


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    return path


def test_the_old_file_stays_until_the_new_one_is_whole(path):
    with replacing(path) as temporary:
        temporary.write_text("half ")
        assert path.read_text() == "old"
        with open(temporary, "a") as file:
            file.write("and half")
    assert path.read_text() == "half and half"
    assert list(path.parent.iterdir()) == [path]


def write_half(path, error):
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(error, path):
    with pytest.raises(error):
        write_half(path, error)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_no_file_where_there_was_none(tmp_path):
    with pytest.raises(ValueError, match="no"):
        write_half(tmp_path / "new", ValueError("no"))
    assert list(tmp_path.iterdir()) == []


def test_a_block_that_writes_nothing_fails_and_keeps_the_old_file(path):
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"


def test_the_temporary_file_is_hidden_beside_its_goal_and_its_owners(path):
    """Beside it, since a rename is atomic within one file system only."""
    with replacing(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.name.startswith(".file.txt.")
        assert temporary.suffix == ".tmp"
        temporary.write_text("new")


def test_the_next_writer_of_a_file_removes_what_a_killed_one_left_of_it(path):
    host = socket.gethostname().replace(".", "-")
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    killed, working, elsewhere = (f".file.txt.{who}.tmp" for who in (f"{host}.{int(gone.stdout)}", f"{host}.1", "x.1"))
    other = killed.replace("file", "other.file")
    for name in (killed, working, elsewhere, other):
        (path.parent / name).touch()
    write_text(path, "new")
    assert {file.name for file in path.parent.iterdir()} == {path.name, working, elsewhere, other}


def test_folders_are_made(tmp_path):
    write_text(tmp_path / "a" / "b" / "c.txt", "text")
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "text"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
@pytest.mark.parametrize("made", [0o600, 0o666])
def test_who_may_read_what_was_written_is_for_the_umask_to_say(umask, mode, made, tmp_path):
    """Whatever the library that wrote it thinks: safetensors makes files that nobody else may read."""
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "file") as temporary:
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, made))
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_json_comes_back_and_is_readable(tmp_path):
    value = {"name": "Müller", "loss": 0.1 + 0.2, "rows": [1, None, True]}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value
    assert "Müller" in (tmp_path / "value.json").read_text(encoding="utf-8")
    assert (tmp_path / "value.json").read_text().endswith("}\n")


def test_what_is_no_json_leaves_the_old_file(path):
    with pytest.raises(TypeError):
        write_json(path, {"object": object()})
    assert path.read_text() == "old"


def test_a_missing_json_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nothing.json: no such file"):
        read_json(tmp_path / "nothing.json")


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe"])
def test_a_broken_json_file_is_one_line_with_a_remedy(content, tmp_path):
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(UserError, match=r"broken.json: not valid JSON \(.+\); delete it and run the stage") as caught:
        read_json(tmp_path / "broken.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_hash_in_blocks_is_the_hash_of_the_whole(size, tmp_path):
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_json_numbers_keep_every_bit(tmp_path):
    numbers = [1e-300, 2**0.5, 1 / 3, float(2**53 - 1)]
    write_json(tmp_path / "numbers.json", numbers)
    assert json.loads((tmp_path / "numbers.json").read_text()) == numbers
