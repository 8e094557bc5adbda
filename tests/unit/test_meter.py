# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Prompt tokens from the prefix cache, as usage tells them."""

from __future__ import annotations

import pytest

from vllm_goodput.gateway.meter import StreamMeter, usage_cached


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}, 8),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),  # looked up, and not found
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {"cached_tokens": True}}, None),
        ({"prompt_tokens_details": {"cached_tokens": -1}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 1.5}}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": [1]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_cached_tokens_of_a_usage(usage, cached):
    assert usage_cached(usage) == cached


def test_a_stream_tells_at_its_end():
    meter = StreamMeter()
    meter.feed(b'data: {"choices":[{"text":"x"}]}\n\n')
    assert meter.cached_len is None
    meter.feed(b'data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":1,')
    meter.feed(b'"prompt_tokens_details":{"cached_tokens":32}}}\n\ndata: [DONE]\n\n')
    assert (meter.cached_len, meter.prompt_len) == (32, 40)
