# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Keys of prompts for the prefix index: what shares a beginning shares keys, what is unlike shares none."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput._C import text_keys, token_keys
from vllm_goodput.gateway.prefix_keys import prefix_blocks
from vllm_goodput.router.prefix import (
    BYTES_PER_KEY,
    MAX_BLOCKS,
    TOKENS_PER_KEY,
    Blocks,
    text_blocks,
    token_blocks,
)

MASK = 2**64 - 1
token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=100)
texts = st.text(max_size=300)


def mix(state: int, value: int) -> int:
    z = ((state ^ value) + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def shared(a: Blocks, b: Blocks) -> int:
    """Keys that two prompts have in common at their beginning; none may be common behind that."""
    same = [x == y for x, y in zip(a.hashes.tolist(), b.hashes.tolist(), strict=False)]
    count = same.index(False) if False in same else len(same)
    assert not set(a.hashes[count:].tolist()) & set(b.hashes[count:].tolist())
    return count


def chat(*messages: tuple[str, str], **more):
    return {"messages": [{"role": r, "content": c} for r, c in messages], **more}


def keys(body, is_chat: bool = True, prompt_len: int = 100, model: str | None = "m") -> Blocks:
    blocks = prefix_blocks(body, is_chat, prompt_len, model)
    assert blocks is not None
    return blocks


@given(token_lists, st.integers(1, 20), st.integers(0, MASK), st.integers(0, 8))
def test_token_keys_match_the_model(tokens, block, state, limit):
    want, at = [], state
    for end in range(block, len(tokens) + 1, block):
        part = tokens[end - block : end] + [0] * (block % 2)
        for low, high in zip(part[::2], part[1::2], strict=True):
            at = mix(at, low | high << 32)
        want.append(at)
    assert token_keys(tokens, block, state, limit).tolist() == want[:limit]


@given(st.binary(max_size=200), st.integers(1, 4), st.integers(0, MASK))
def test_text_keys_match_the_model(text, words, state):
    want, at, size = [], state, 8 * words
    for end in range(size, len(text) + 1, size):
        for i in range(end - size, end, 8):
            at = mix(at, int.from_bytes(text[i : i + 8], "little"))
        want.append(at)
    assert text_keys(text, size, state, 100).tolist() == want


@given(token_lists, st.integers(0, 6))
def test_a_key_is_enough_to_go_on_from(tokens, blocks):
    whole = token_keys(tokens, 4, 7, 1000)
    cut = min(blocks, len(whole))
    state = 7 if cut == 0 else int(whole[cut - 1])
    assert token_keys(tokens[4 * cut :], 4, state, 1000).tolist() == whole[cut:].tolist()


@pytest.mark.parametrize("odd", [-1, 2**32, 2**70, 1.0, True, "1", None, [1]])
def test_what_is_no_token_gives_no_keys(odd):
    assert token_blocks([1] * 40 + [odd] * 8, "m") is None


@given(token_lists, token_lists, token_lists)
def test_tokens_share_the_whole_blocks_of_their_common_beginning(common, one, other):
    a, b = token_blocks([*common, 1, *one], "m"), token_blocks([*common, 2, *other], "m")
    assert a is not None
    assert b is not None
    assert shared(a, b) == len(common) // TOKENS_PER_KEY
    assert len(a.hashes) == (len(common) + 1 + len(one)) // TOKENS_PER_KEY


def test_unlike_prompts_have_no_key_in_common():
    ids = list(range(64))
    found = [
        token_blocks(ids, "m"),
        token_blocks(ids, "other"),
        token_blocks(ids, None),
        token_blocks(ids, ""),
        token_blocks(ids, "m", "salt"),
        token_blocks(ids, "msalt"),
        text_blocks(bytes(ids) * 4, 0.25, "m"),
        text_blocks(bytes(ids) * 4, 0.25, "m", "salt"),
        text_blocks(bytes(ids) * 4, 0.25, "m", None, b"salt"),
    ]
    seen = [key for blocks in found if blocks is not None for key in blocks.hashes.tolist()]
    assert len(seen) == len(set(seen)) == 9 * 4


def test_work_is_bounded():
    assert len(keys({"prompt": "x" * 10_000_000}, False).hashes) == MAX_BLOCKS
    ids = token_blocks([1] * (MAX_BLOCKS + 10) * TOKENS_PER_KEY, "m")
    assert ids is not None
    assert len(ids.hashes) == MAX_BLOCKS
    body = chat(*[("user", "y" * 1000)] * 2000)
    assert len(keys(body).hashes) == MAX_BLOCKS


def test_hits_are_whole_blocks_of_the_instance_and_never_the_last_token():
    ids = token_blocks(list(range(64)), "m")
    assert ids is not None
    matched = np.array([0, 1, 3, 4, 4], dtype=np.int32)
    sizes = np.array([16, 16, 32, 16, 64], dtype=np.int32)
    assert ids.hit_tokens(matched, 64, sizes).tolist() == [0, 16, 32, 48, 0]
    assert ids.hit_tokens(matched, 65).tolist() == [0, 16, 48, 64, 64]
    assert ids.hit_tokens(matched, 0).tolist() == [0] * 5


@given(texts, st.integers(1, 2000))
def test_all_blocks_of_a_text_together_are_no_more_tokens_than_it_has(text, prompt_len):
    blocks = prefix_blocks({"prompt": text}, False, prompt_len, "m")
    if text:
        assert blocks is not None
        assert not blocks.exact
        assert len(blocks.hashes) == len(text.encode()) // BYTES_PER_KEY
        assert len(blocks.hashes) * blocks.tokens_per_block <= prompt_len * (1 + 1e-9)
    else:
        assert blocks is None


def test_a_completion_shares_the_bytes_of_its_beginning():
    a = keys({"prompt": "é" * 100 + "end"}, False, 51)
    b = keys({"prompt": "é" * 100 + "another end"}, False, 51)
    assert shared(a, b) == 200 // BYTES_PER_KEY
    assert a.tokens_per_block == pytest.approx(64 * 51 / 203)


def test_the_same_image_is_shared():
    one = keys(image("data:image/png;base64," + "A" * 100_000))
    assert shared(one, keys(image("data:image/png;base64," + "A" * 100_000))) == len(one.hashes)


def test_token_ids_are_exact():
    blocks = keys({"prompt": list(range(100))}, False)
    assert (len(blocks.hashes), blocks.tokens_per_block, blocks.exact) == (6, 16.0, True)


def test_a_session_keeps_its_beginning():
    turns = [
        ("system", "s" * 700),
        ("user", "u" * 500),
        ("assistant", "a" * 900),
        ("user", "v" * 99),
    ]
    first, second = keys(chat(*turns[:2])), keys(chat(*turns))
    assert shared(first, second) == len(first.hashes) == 1200 // BYTES_PER_KEY


def test_tools_come_first():
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 500}}]
    a, b = (
        keys(chat(("user", "x" * 300), tools=tools)),
        keys(chat(("user", "y" * 300), tools=tools)),
    )
    assert shared(a, b) >= 500 // BYTES_PER_KEY
    assert shared(a, keys(chat(("user", "x" * 300)))) == 0


def test_roles_names_and_calls_count():
    long = "x" * 200
    bodies = [
        chat(("user", long), ("user", long)),
        chat(("user", long), ("assistant", long)),
        chat(("user", long + long)),
    ]
    for name, value in (
        ("name", "bob"),
        ("tool_call_id", "7"),
        ("reasoning", "hm"),
        ("tool_calls", [{"function": {"name": "f"}}]),
    ):
        bodies.append(chat(("user", long), ("user", long)))
        bodies[-1]["messages"][1][name] = value
    last = {keys(body).hashes.tolist()[-1] for body in bodies}
    assert len(last) == len(bodies)
    assert shared(keys(bodies[0]), keys(bodies[1])) == 200 // BYTES_PER_KEY


def test_text_parts_read_as_one_text():
    parts = [{"type": "text", "text": "x" * 100}, {"type": "text", "text": "y" * 100}]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert shared(keys(body), keys(chat(("user", "x" * 100 + "y" * 100)))) == 3


def image(url: str):
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "z" * 500}]}]}


def test_media_are_told_apart_by_their_reference():
    inlined = "data:image/png;base64," + "A" * 100_000
    changed = inlined[:50_000] + "B" + inlined[50_001:]
    urls = ["http://a/1.png", "http://a/2.png", inlined, changed, inlined + "A"]
    for i, one in enumerate(urls):
        for other in urls[i + 1 :]:
            a, b = keys(image(one)), keys(image(other))
            # The text behind the image, 500 characters, is not shared.
            assert shared(a, b) <= min(len(a.hashes), len(b.hashes)) - 7
    assert len(keys(image(inlined)).hashes) < 100  # the image itself is not read through


@pytest.mark.parametrize(
    "more",
    [
        {"cache_salt": "s"},
        {"chat_template": "t"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"documents": [{"text": "d"}]},
        {"add_special_tokens": False},
    ],
)
def test_what_changes_a_prompt_from_its_beginning_shares_nothing(more):
    plain = chat(("user", "x" * 500))
    assert shared(keys(plain), keys({**plain, **more})) == 0
    assert shared(keys({**plain, **more}), keys(copy.deepcopy({**plain, **more}))) == 7


def test_what_does_not_change_a_prompt_shares_everything():
    plain = chat(("user", "x" * 500))
    more = {
        "max_tokens": 7,
        "temperature": 0.5,
        "stream": True,
        "seed": 1,
        "add_special_tokens": None,
    }
    assert shared(keys(plain), keys({**plain, **more})) == 7


@pytest.mark.parametrize(
    ("body", "is_chat"),
    [
        ({"prompt": ["a" * 100, "b" * 100]}, False),
        ({"prompt": [[1] * 100, [2] * 100]}, False),
        ({"prompt": 7}, False),
        ({}, False),
        ({"prompt": [1] * 100, "prompt_logprobs": 1}, False),
        ({"prompt": [1] * 100, "echo": True, "logprobs": 1}, False),
        ({"prompt": "x" * 100, "prompt_embeds": "AAAA"}, False),
        ({"prompt": "x" * 100, "truncate_prompt_tokens": 3}, False),
        ({"prompt": "x" * 100, "cache_salt": 5}, False),
        ({"prompt": "x" * 100, "cache_salt": "s" * 5000}, False),
        ({"messages": "x"}, True),
        ({"messages": [7]}, True),
        ({"messages": [{"content": "x"}]}, True),
        ({"messages": [{"role": "user", "content": 5}]}, True),
        ({"messages": [{"role": "user", "content": [5]}]}, True),
        ({"messages": [], "tools": []}, True),
    ],
)
def test_what_has_no_keys(body, is_chat):
    assert prefix_blocks(body, is_chat, 100, "m") is None


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.sampled_from(
    ["prompt", "messages", "tools", "cache_salt", "chat_template_kwargs", "documents", "echo"]
)
message = st.dictionaries(
    st.sampled_from(["role", "content", "name", "tool_calls", "reasoning"]), odd
)


@given(
    st.dictionaries(fields, odd | st.lists(message, max_size=3), max_size=5),
    st.booleans(),
    st.integers(-5, 10**9),
)
def test_odd_bodies_never_raise(body, is_chat, prompt_len):
    blocks = prefix_blocks(body, is_chat, prompt_len, "m")
    assert blocks is None or blocks.hashes.dtype == np.uint64
