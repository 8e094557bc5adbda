# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Loading, selecting and writing traces."""

from __future__ import annotations

import json

import pytest

from vllm_goodput.bench import Selection, load_trace, trace_duration_s, trace_sha256, write_trace
from vllm_goodput.bench.row import TraceRow
from vllm_goodput.errors import ConfigError, TraceError
from vllm_goodput.slo import SLO

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:05.5000000,30,3
2023-11-16 18:17:03.0000000,10,1
2023-11-16 18:17:04.0000000,20,2
"""
MOONCAKE = (
    '{"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 1500, "input_length": 700, "output_length": 6, "hash_ids": [0, 2]}\n'
)


@pytest.fixture
def write(tmp_path):
    def _write(text, name="trace.jsonl"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def goodput_line(**fields):
    row = {"arrival_s": 0, "prompt_len": 4, "output_len": 2} | fields
    return json.dumps({name: value for name, value in row.items() if value is not ...}) + "\n"


def test_azure_rows_are_sorted_and_start_at_zero(write):
    rows = load_trace(write(AZURE, "trace.csv"))
    assert [(r.arrival_s, r.prompt_len, r.output_len) for r in rows] == [
        (0.0, 10, 1),
        (1.0, 20, 2),
        (2.5, 30, 3),
    ]
    assert trace_duration_s(rows) == 2.5


def test_azure_with_zone_bom_crlf_and_other_suffix(write):
    text = (
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-10 00:00:00.009930+00:00,7,8\r\n"
    )
    assert load_trace(write(text, "trace.txt"))[0].prompt_len == 7


def test_mooncake(write):
    rows = load_trace(write(MOONCAKE))
    assert [r.arrival_s for r in rows] == [0.0, 1.0]
    assert rows[1].prefix_ids == (0, 2)
    assert rows[1].prompt_len == 700


def test_goodput_rows(write):
    text = (
        goodput_line(arrival_s=2, task="math", session="s", slo={"e2el_ms": 20000, "ttft_ms": None})
        + "\n"
        + goodput_line(prompt="hello wor", prompt_len=..., media=None)
        + goodput_line(arrival_s=1, prompt=[5, 6, 7], prompt_len=3)
    )
    text_row, ids_row, last = load_trace(write(text))
    assert (text_row.prompt, text_row.prompt_len) == ("hello wor", 3)
    assert (ids_row.prompt, ids_row.prompt_len) == ([5, 6, 7], 3)
    assert (last.task, last.session, last.slo) == ("math", "s", SLO(e2el_ms=20000))


def test_rows_survive_writing(tmp_path):
    rows = [
        TraceRow(arrival_s=0.0, prompt_len=3, output_len=2, task="t", session="s"),
        TraceRow(arrival_s=0.25, prompt_len=2, output_len=1, prompt=[4, 5], slo=SLO(ttft_ms=1)),
        TraceRow(arrival_s=1.5, prompt_len=9, output_len=1, prompt="hé"),
        TraceRow(
            arrival_s=2, prompt_len=2, output_len=1, messages=(("system", "a"), ("user", "é"))
        ),
    ]
    path = tmp_path / "out.jsonl"
    assert write_trace(rows, path) == 4
    assert load_trace(path) == rows
    assert len(trace_sha256(path)) == 64


BAD_GOODPUT = [
    ({"prompt_len": ...}, "prompt_len is missing"),
    ({"output_len": ...}, "output_len is missing"),
    ({"output_len": 0}, "output_len must be a whole number from 1 to 100000000, got 0"),
    ({"output_len": True}, "output_len must be .*got True"),
    ({"output_len": 2.5}, "output_len must be .*got 2.5"),
    ({"prompt_len": "12"}, "prompt_len must be .*got '12'"),
    ({"arrival_s": -1}, "arrival_s must be from 0 .*got -1"),
    ({"arrival_s": "1"}, "arrival_s must be a number, got '1'"),
    ({"arrival_s": False}, "arrival_s must be a number, got False"),
    ({"arrival_s": 1e300}, "arrival_s must be from 0"),
    ({"surprise": 1}, "unknown key 'surprise'"),
    ({"media": [{"type": "image"}]}, "media replay isn't supported yet"),
    ({"task": ""}, "task must be a string of 1 to 128 characters, got ''"),
    ({"task": "a\nb"}, "task must be printable"),
    ({"session": 7}, "session must be a string .*got 7"),
    ({"prompt": ""}, "prompt must be text or token ids that are not empty"),
    ({"prompt": [], "prompt_len": ...}, "prompt must be text or token ids that are not empty"),
    ({"prompt": [1, -2]}, "prompt must be text or a list of token ids"),
    ({"prompt": [1, 2], "prompt_len": 3}, "prompt_len must be the prompt's 2 tokens, got 3"),
    ({"messages": []}, "messages must be a list of {role, content} objects"),
    ({"messages": ["a"]}, "messages must be a list of {role, content} objects"),
    ({"messages": [{"role": "user"}]}, "messages must be a list of {role, content} objects"),
    ({"messages": [{"role": "user", "content": "a"}], "prompt": "b"}, "messages must be absent"),
    ({"slo": 5}, "slo must be an object"),
    ({"slo": {"e2e_ms": 5}}, "unknown key 'slo.e2e_ms'"),
    ({"slo": {"e2el_ms": 0}}, "slo: .*e2el_ms must be .*got 0"),
    ({"slo": {"e2el_ms": "5"}}, "slo: .*e2el_ms must be .*got '5'"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_GOODPUT)
def test_malformed_goodput_row_names_file_line_field_and_value(write, fields, message):
    path = write(goodput_line() + goodput_line(**fields))
    with pytest.raises(TraceError, match=message) as caught:
        load_trace(path)
    assert str(caught.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{not json}\n", "not JSON"),
        (b'{"arrival_s": NaN}\n', "not JSON"),
        (b"[1, 2]\n", "expected a JSON object"),
        (b"\xff\xfe\n", "not UTF-8"),
    ],
)
def test_malformed_line_names_file_and_line(write, line, message):
    path = write(goodput_line().encode() + line)
    with pytest.raises(TraceError, match=message) as caught:
        load_trace(path)
    assert f"{path}:2: " in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("yesterday,1,1", "TIMESTAMP must be a time .*got 'yesterday'"),
        ("2023-11-16 18:17:03,x,1", "ContextTokens must be .*got 'x'"),
        ("2023-11-16 18:17:03,1,-4", "GeneratedTokens must be .*got '-4'"),
        ("2023-11-16 18:17:03,1,0", "GeneratedTokens must be .*got '0'"),
        ("2023-11-16 18:17:03,1", "expected 3 columns, got 2"),
    ],
)
def test_malformed_azure_row(write, row, message):
    path = write(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n", "t.csv")
    with pytest.raises(TraceError, match=f"t.csv:2: {message}"):
        load_trace(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"timestamp": "x"}, "timestamp must be a number, got 'x'"),
        ({"input_length": -1}, "input_length must be .*got -1"),
        ({"output_length": None}, "output_length must be .*got None"),
        ({"hash_ids": 3}, "hash_ids must be a list of whole numbers >= 0, got 3"),
        ({"hash_ids": [0, "1"]}, "hash_ids must be a list"),
        ({"hash_ids": [True]}, "hash_ids must be a list"),
    ],
)
def test_malformed_mooncake_row(write, fields, message):
    bad = json.loads(MOONCAKE.splitlines()[0]) | fields
    path = write(MOONCAKE + json.dumps(bad))
    with pytest.raises(TraceError, match=f":3: {message}"):
        load_trace(path)


def test_mooncake_without_output_length(write):
    with pytest.raises(TraceError, match=":1: output_length is missing"):
        load_trace(write('{"timestamp": 0, "input_length": 5}'))


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_trace(write, text):
    with pytest.raises(TraceError, match="the trace is empty"):
        load_trace(write(text))


def test_header_only_trace(write):
    with pytest.raises(TraceError, match="no rows"):
        load_trace(write("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t.csv"))


def test_unknown_columns(write):
    with pytest.raises(TraceError, match=r":1: cannot tell .*'tokens'"):
        load_trace(write('{"t": 1, "tokens": 2}'))
    with pytest.raises(TraceError, match=r"no column 'TIMESTAMP'"):
        load_trace(write("a,b\n1,2\n", "t.csv"))


def test_forced_format(write):
    with pytest.raises(TraceError, match="unknown key 'timestamp'"):
        load_trace(write(MOONCAKE), format="goodput")


def test_unreadable_file(tmp_path):
    with pytest.raises(TraceError, match="cannot read the trace: No such file"):
        load_trace(tmp_path / "missing.jsonl")
    with pytest.raises(TraceError, match="cannot read the trace: Is a directory"):
        load_trace(tmp_path)


def rows_at(*arrivals, **fields):
    values = {"prompt_len": 10, "output_len": 10} | fields
    return [TraceRow(arrival_s=at, **values) for at in arrivals]


def arrivals(rows):
    return [row.arrival_s for row in rows]


def test_window_limit_and_rebase():
    rows = rows_at(0, 1, 2, 3, 4, 5)
    assert arrivals(Selection(start_s=2, duration_s=3).apply(rows)) == [0, 1, 2]
    assert arrivals(Selection(start_s=1, limit=2).apply(rows)) == [0, 1]
    with pytest.raises(TraceError, match="no row arrives from 9 to 10 s"):
        Selection(start_s=9, duration_s=1).apply(rows)


def test_time_scale_and_request_rate():
    rows = rows_at(0, 2, 8)
    assert arrivals(Selection(time_scale=0.5).apply(rows)) == [0, 1, 4]
    rescaled = Selection(request_rate=6).apply(rows)
    assert len(rescaled) / trace_duration_s(rescaled) == pytest.approx(6)
    assert rescaled[1].arrival_s / rescaled[2].arrival_s == pytest.approx(0.25)
    with pytest.raises(ConfigError, match="arrive at once"):
        Selection(request_rate=1).apply(rows_at(0, 0))


def test_length_caps():
    ids = Selection(max_prompt_len=2).apply(rows_at(0, prompt=[1, 2, 3], prompt_len=3))[0]
    text = Selection(max_prompt_len=2).apply(rows_at(0, prompt="abcdefgh", prompt_len=4))[0]
    short = Selection(max_prompt_len=50, max_output_len=4).apply(rows_at(0))[0]
    assert (ids.prompt, ids.prompt_len) == ([1, 2], 2)
    assert (text.prompt, text.prompt_len) == ("abcd", 2)
    assert (short.prompt_len, short.output_len) == (10, 4)


def test_default_slo_goes_to_rows_without_one_and_all_are_scaled():
    rows = [*rows_at(0, slo=SLO(e2el_ms=100)), *rows_at(1)]
    chosen = Selection(default_slo=SLO(ttft_ms=10), slo_scale=2).apply(rows)
    assert [row.slo for row in chosen] == [SLO(e2el_ms=200), SLO(ttft_ms=20)]


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0},
        {"start_s": -1.0},
        {"duration_s": 0.0},
        {"time_scale": float("nan")},
        {"request_rate": float("inf")},
        {"slo_scale": -1.0},
        {"max_prompt_len": 0},
        {"time_scale": 1.0, "request_rate": 1.0},
    ],
)
def test_bad_selection_names_the_argument(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        Selection(**fields)
