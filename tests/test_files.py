"""Atomic writes: the old content or the new, no draft left, no link followed, the mode that the umask gives."""

import os

import pytest

from trainoff.files import atomic_open, atomic_write, write_output


def test_a_write_replaces_the_content_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "note.json"
    for content in ("first, ä", b"second"):
        atomic_write(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_keeps_the_old_content_and_removes_its_draft(tmp_path):
    path = tmp_path / "note.json"
    path.write_text("old")
    with pytest.raises(TypeError), atomic_open(path) as file:
        file.write("text is no bytes")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    path, target = tmp_path / "note.json", tmp_path / "elsewhere"
    target.write_text("not to be touched")
    path.symlink_to(target)
    atomic_write(path, "new")
    assert (path.read_text(), path.is_symlink()) == ("new", False)
    assert target.read_text() == "not to be touched"


def test_the_mode_is_that_of_any_new_file(tmp_path):
    path = tmp_path / "note.json"
    before = os.umask(0o027)
    try:
        atomic_write(path, "new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_output_goes_into_a_device_and_does_not_replace_it(tmp_path):
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    write_output(device, "text")
    assert device.is_char_device(), "atomic_write would have replaced the link"


def test_output_neither_waits_for_a_pipe_nor_replaces_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"):
        write_output(pipe, "text")
    assert pipe.is_fifo()
