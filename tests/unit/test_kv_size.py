# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Sizes of KV caches from what instances tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput.gateway.kv_size import KvSize, size_of_info, size_of_metrics


def page(*ranks: str) -> str:
    lines = [f"vllm:cache_config_info{{{labels}}} 1.0" for labels in ranks]
    return "\n".join(
        [
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
            "# TYPE vllm:cache_config_info gauge",
            *lines,
            'vllm:num_requests_running{engine="0",model_name="m"} 3.0',
            "",
        ]
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (page('block_size="16",engine="0",num_gpu_blocks="1000"'), KvSize(16_000, 16)),
        # A hybrid model's: the product would be wrong.
        (
            page('block_size="544",kv_cache_size_tokens="90000",num_gpu_blocks="40"'),
            KvSize(90_000, 544),
        ),
        # Two ranks: tokens are those of one, blocks those of both.
        (
            page(*(f'block_size="16",kv_cache_size_tokens="8000",engine="{r}"' for r in "01")),
            KvSize(16_000, 16),
        ),
        (
            page(*(f'block_size="16",num_gpu_blocks="1000",engine="{r}"' for r in "01")),
            KvSize(16_000, 16),
        ),
        (page('block_size="16",num_gpu_blocks="None"'), KvSize(None, 16)),
        (page('block_size="None",num_gpu_blocks="5"'), KvSize()),
        (page('a="x\\"},b=",block_size="32",num_gpu_blocks="2"'), KvSize(64, 32)),
        (page('block_size="-16",num_gpu_blocks="9999999999999999999"'), KvSize()),
        (page(), KvSize()),
        ("", KvSize()),
    ],
)
def test_the_metrics_page(text, size):
    assert size_of_metrics(text) == size


@pytest.mark.parametrize(
    ("info", "size"),
    [
        ({"block_size": 16, "num_gpu_blocks": 1000, "kv_tokens": 15_000}, KvSize(15_000, 16)),
        ({"block_size": 16, "num_gpu_blocks": 1000}, KvSize(16_000, 16)),
        ({"block_size": 16, "num_gpu_blocks": None, "kv_tokens": None}, KvSize(None, 16)),
        ({"kv_tokens": True, "block_size": [16]}, KvSize()),
        ({}, KvSize()),
        (None, KvSize()),
    ],
)
def test_the_plugins_info(info, size):
    assert size_of_info(info) == size


def test_what_is_configured_goes_first():
    told = KvSize(16_000, 16)
    assert KvSize(block_size=32).over(told) == KvSize(16_000, 32)
    assert KvSize(5, None).over(KvSize()) == KvSize(5, None)
    assert told.complete
    assert not KvSize(5, None).complete


VALUE = st.one_of(st.none(), st.text(max_size=20), st.integers(), st.floats(), st.booleans())


@given(st.dictionaries(st.sampled_from(["block_size", "num_gpu_blocks", "kv_tokens"]), VALUE))
def test_whatever_is_told_a_size_is_positive_or_unknown(told):
    labels = ",".join(f'{name}="{value}"' for name, value in told.items())
    for size in (size_of_info(told), size_of_metrics(page(labels))):
        assert size.block_size is None or 0 < size.block_size < 2**31
        assert size.kv_tokens is None or 0 < size.kv_tokens < 2**62
