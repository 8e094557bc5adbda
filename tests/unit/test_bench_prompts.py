# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Bodies and headers of replayed requests."""

from __future__ import annotations

import json

import pytest

from vllm_goodput.bench import ReplayOptions
from vllm_goodput.bench.prompts import check_rows, prompt_ids, request_body, request_headers
from vllm_goodput.bench.row import TraceRow
from vllm_goodput.errors import ConfigError
from vllm_goodput.slo import SLO


def row(**fields):
    return TraceRow(**({"arrival_s": 0.0, "prompt_len": 20, "output_len": 4} | fields))


def body(trace_row, index=0, **options):
    return json.loads(request_body(trace_row, index, "m", ReplayOptions(**options)))


def test_completions_body():
    got = body(row(), vocab_size=50)
    prompt = got.pop("prompt")
    assert len(prompt) == 20
    assert all(3 <= token < 50 for token in prompt)
    assert got == {
        "model": "m",
        "max_tokens": 4,
        "min_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_made_up_prompts_depend_on_seed_and_row_only():
    assert body(row(), 1)["prompt"] == body(row(), 1)["prompt"]
    assert body(row(), 1)["prompt"] != body(row(), 2)["prompt"]
    assert body(row(), 1)["prompt"] != body(row(), 1, seed=1)["prompt"]


def test_turns_of_a_session_share_their_beginning():
    options = ReplayOptions()
    first = prompt_ids(row(session="a", prompt_len=30), 0, options)
    second = prompt_ids(row(session="a", prompt_len=70), 5, options)
    other = prompt_ids(row(session="b", prompt_len=30), 1, options)
    assert second[:30] == first
    assert other != first
    alone = ReplayOptions(share_session_prefix=False)
    assert prompt_ids(row(session="a", prompt_len=70), 5, alone)[:30] != first


def test_mooncake_blocks_share_exactly_the_equal_prefix():
    options = ReplayOptions()
    one = prompt_ids(row(prompt_len=1200, prefix_ids=(0, 1, 2)), 0, options)
    two = prompt_ids(row(prompt_len=1100, prefix_ids=(0, 1, 9)), 1, options)
    assert (len(one), len(two)) == (1200, 1100)
    assert one[:1024] == two[:1024]
    assert one[1024:1100] != two[1024:1100]


def test_prompt_longer_than_its_blocks_is_filled_up():
    ids = prompt_ids(row(prompt_len=600, prefix_ids=(0,)), 3, ReplayOptions())
    again = prompt_ids(row(prompt_len=600, prefix_ids=(0,)), 4, ReplayOptions())
    assert len(ids) == 600
    assert ids[:512] == again[:512]
    assert ids[512:] != again[512:]


def test_given_prompts_are_sent_as_they_are():
    assert body(row(prompt="text"))["prompt"] == "text"
    assert body(row(prompt=[7, 8]))["prompt"] == [7, 8]
    chat = body(row(prompt="text"), endpoint="chat")
    assert chat["messages"] == [{"role": "user", "content": "text"}]


def test_chat_sends_as_many_words_as_prompt_tokens():
    content = body(row(prompt_len=12), endpoint="chat")["messages"][0]["content"]
    assert len(content.split()) == 12


def test_chat_refuses_token_ids():
    rows = [row(), row(prompt="text"), row(prompt=[7])]
    check_rows(rows, ReplayOptions())
    with pytest.raises(ConfigError, match="row 2 of the trace has token ids"):
        check_rows(rows, ReplayOptions(endpoint="chat"))


def test_other_body_options():
    got = body(row(), stream=False, ignore_eos=False, extra_body={"temperature": 0.7, "top_k": 5})
    assert (got["temperature"], got["top_k"], got["stream"]) == (0.7, 5, False)
    assert not {"stream_options", "min_tokens", "ignore_eos"} & got.keys()


def test_headers():
    options = ReplayOptions(api_key="k", headers={"X-Extra": "1"}, run_id="run")
    got = request_headers(
        row(task="math", session="s", slo=SLO(ttft_ms=1234567.5, e2el_ms=2e7)), 7, options
    )
    assert got == {
        "Content-Type": "application/json",
        "Authorization": "Bearer k",
        "x-request-id": "run-7",
        "x-slo-ttft-ms": "1234567.5",
        "x-slo-e2el-ms": "20000000.0",
        "x-goodput-task": "math",
        "x-session-id": "s",
        "X-Extra": "1",
    }


def test_given_headers_win_in_any_case():
    options = ReplayOptions(api_key="k", headers={"authorization": "Basic x"})
    got = request_headers(row(), 0, options)
    assert got["authorization"] == "Basic x"
    assert "Authorization" not in got


def test_run_ids_differ():
    assert ReplayOptions().run_id != ReplayOptions().run_id


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "localhost:8000"}, "url must be"),
        ({"url": "http://h:99999"}, "url must be"),
        ({"url": "http://h/?q=1"}, "url must be"),
        ({"vocab_size": 3}, "vocab_size"),
        ({"seed": -1}, "seed"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"extra_body": {"stream": False}}, "'stream' cannot be overridden"),
        ({"headers": {"a b": "1"}}, "'a b' is not a header name"),
        ({"headers": {"a": "1\r\nx: y"}}, "unprintable"),
    ],
)
def test_bad_options(fields, message):
    with pytest.raises(ConfigError, match=message):
        ReplayOptions(**fields)


def test_urls():
    options = ReplayOptions(url="http://user:secret@h:1/v1/", endpoint="chat", api_key="hush")
    assert options.request_url == "http://user:secret@h:1/v1/chat/completions"
    assert options.public_url == "http://h:1"
    assert "hush" not in repr(options)


def test_conversations_are_sent_as_they_are():
    messages = (("user", "a"), ("assistant", "b"), ("user", "c"))
    got = body(row(messages=messages), endpoint="chat")
    assert got["messages"] == [{"role": role, "content": text} for role, text in messages]
    with pytest.raises(ConfigError, match="row 0 of the trace has messages"):
        check_rows([row(messages=messages)], ReplayOptions())
