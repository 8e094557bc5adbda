# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The SSE parser."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput.bench.sse import SSEEvent, SSEParser

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


def parse(*chunks):
    parser = SSEParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.close()


@given(
    st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.data(),
)
def test_any_chunk_boundary_gives_the_events_that_were_sent(events, newline, data):
    text = "".join(
        "".join(f"data: {line}{newline}" for line in lines) + newline for lines in events
    ).encode()
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    edges = [0, *cuts, len(text)]
    chunks = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert parse(*chunks) == [SSEEvent("\n".join(lines)) for lines in events]


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_arbitrary_bytes_parse_alike_in_any_split(chunks):
    assert parse(*chunks) == parse(b"".join(chunks))


def test_single_bytes():
    text = 'data: {"a": "é"}\r\n\r\n: ping\r\n\r\ndata: [DONE]\r\n\r\n'.encode()
    expected = [SSEEvent('{"a": "é"}'), SSEEvent("ping", comment=True), SSEEvent("[DONE]")]
    assert parse(*(bytes([byte]) for byte in text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"data:x\n\n", [SSEEvent("x")]),
        (b"data:  x\n\n", [SSEEvent(" x")]),
        (b"data\n\n", [SSEEvent("")]),
        (b"event: error\ndata: {}\n\n", [SSEEvent("{}", "error")]),
        (b"event: lonely\n\ndata: x\n\n", [SSEEvent("x")]),
        (b"id: 1\nretry: 5\nunknown: y\ndata: x\n\n", [SSEEvent("x")]),
        (b"\xef\xbb\xbfdata: x\n\n", [SSEEvent("x")]),
        (b"data: [DONE]", [SSEEvent("[DONE]")]),
        (b"data: x\n", [SSEEvent("x")]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_field_syntax(text, expected):
    assert parse(text) == expected
