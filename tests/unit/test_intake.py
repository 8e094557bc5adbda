# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What the gateway takes from a body must be what vLLM will do with it."""

from __future__ import annotations

import pytest

from vllm_goodput.gateway.prompt_len import PromptLengths, measure
from vllm_goodput.predictor.view import max_tokens_of


@pytest.mark.parametrize(
    ("body", "chat", "limit"),
    [
        ({"max_tokens": 200, "max_completion_tokens": 1}, False, 200),
        ({"max_tokens": 1, "max_completion_tokens": 200}, True, 200),
        ({"max_tokens": 5}, True, 5),
        ({"max_completion_tokens": None, "max_tokens": 5}, True, 5),
        ({"max_tokens": True}, False, None),
        ({"max_tokens": -1}, False, None),
        ({}, True, None),
    ],
)
def test_the_limit_is_the_one_vllm_applies(body, chat, limit):
    assert max_tokens_of(body, chat) == limit


@pytest.mark.parametrize(
    ("body", "chat", "expected"),
    [
        ({"prompt": "abcd", "messages": []}, False, (0, 4)),
        ({"prompt": "abcd", "messages": [{"content": "ab"}]}, True, (0, 2)),
        ({"prompt": [1, 2, 3]}, False, (3, 0)),
        ({"prompt": [[1, 2], [3]]}, False, (3, 0)),
        ({"prompt": ["ab", "c"]}, False, (0, 3)),
        (
            {"messages": [{"content": [{"type": "text", "text": "abc"}, {"type": "image_url"}]}]},
            True,
            (0, 3),
        ),
        ({"messages": "x"}, True, (0, 0)),
        ({"prompt": {"a": 1}}, False, (0, 0)),
        ({}, False, (0, 0)),
    ],
)
def test_prompt_sizes(body, chat, expected):
    assert measure(body, chat) == expected


def test_a_deeply_nested_prompt_is_harmless():
    prompt = []
    for _ in range(5000):
        prompt = [prompt]
    assert measure({"prompt": prompt}, False) == (1, 0)


def test_tokens_per_character_are_learned():
    lengths = PromptLengths()
    body = {"model": "m", "prompt": "x" * 1000}
    assert lengths.estimate(body, False) == 250
    for _ in range(200):
        lengths.learn(body, False, 1000)
    assert lengths.estimate(body, False) == pytest.approx(1000, rel=0.01)
    assert lengths.estimate({**body, "model": "other"}, False) == 250
