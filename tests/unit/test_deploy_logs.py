# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
from __future__ import annotations

import os
import re
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_goodput.deploy.logs import MAX_LINE_BYTES, TAIL_LINES, LogFile, LogPump


def pump(path, chunks, *, max_bytes=1 << 20):
    """Write `chunks` through a pipe; returns the tail and the warnings."""
    warnings, done = [], threading.Event()
    read_fd, write_fd = os.pipe()
    thread = LogPump(read_fd, "a", LogFile(path, warnings.append, max_bytes), done.set)
    thread.start()
    for chunk in chunks:
        os.write(write_fd, chunk)
    os.close(write_fd)
    assert done.wait(10)
    return thread.tail(), warnings


def test_lines_get_time_and_name(tmp_path):
    tail, warnings = pump(tmp_path / "a.log", [b"one\ntw", b"o\r\nlast"])
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert [line.split(" | ")[1] for line in lines] == ["one", "two", "last"] == tail
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\S* a \| ", line) for line in lines)
    assert warnings == []


def test_the_file_is_bounded_with_one_old_file(tmp_path):
    pump(tmp_path / "a.log", [b"%05d %s\n" % (i, b"x" * 90) for i in range(2000)], max_bytes=20_000)
    assert sorted(os.listdir(tmp_path)) == ["a.log", "a.log.1"]
    # One read of the pipe is written whole, so a file can exceed the bound by one chunk, prefixed.
    assert all(p.stat().st_size < 20_000 + 3 * 65_536 for p in tmp_path.iterdir())
    assert "01999" in (tmp_path / "a.log").read_text().splitlines()[-1]


def test_a_file_of_an_earlier_run_is_continued(tmp_path):
    (tmp_path / "a.log").write_text("before\n")
    pump(tmp_path / "a.log", [b"after\n"])
    assert len((tmp_path / "a.log").read_text().splitlines()) == 2


def test_a_full_disk_is_reported_once_and_the_pipe_drained():
    tail, warnings = pump("/dev/full", [b"x" * 60_000 + b"\n"] * 20)
    assert len(warnings) == 1
    assert "/dev/full" in warnings[0]
    assert tail[-1].endswith("x")


def test_a_missing_directory_is_no_end(tmp_path):
    tail, warnings = pump(tmp_path / "gone" / "a.log", [b"one\n"])
    assert (tail, len(warnings)) == (["one"], 1)


def test_only_the_last_lines_are_kept(tmp_path):
    tail, _ = pump(tmp_path / "a.log", [b"%d\n" % i for i in range(200)])
    assert tail == [str(i) for i in range(200 - TAIL_LINES, 200)]


def test_output_without_line_ends_is_cut(tmp_path):
    tail, _ = pump(tmp_path / "a.log", [b"x" * 50_000])
    assert max(len(line) for line in tail) <= MAX_LINE_BYTES
    assert sum(len(line) for line in tail) == 50_000


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_bytes_in_any_pieces_give_the_same_lines(tmp_path_factory, chunks):
    path = tmp_path_factory.mktemp("logs") / "a.log"
    tail, warnings = pump(path, chunks)
    whole = [line for line in re.split(rb"[\r\n]+", b"".join(chunks)) if line]
    assert tail == [line.decode(errors="replace") for line in whole][-TAIL_LINES:]
    assert warnings == []
