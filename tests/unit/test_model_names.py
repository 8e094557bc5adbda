# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Which served names share a prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput.gateway.model_names import MAX_NAMES, ModelCard, ModelNames


def base(*names: str, root: str = "/models/llama") -> list[ModelCard]:
    return [ModelCard(name, root=root) for name in names]


def test_aliases_are_one_model_and_adapters_their_own():
    names = ModelNames()
    canonical = names.learn([*base("llama", "prod"), ModelCard("sql", root="/sql", parent="llama")])
    assert canonical == "llama"
    assert names.of("prod") == names.of("llama") == "llama"
    assert names.of("sql") == "sql"
    assert names.of("elsewhere") == "elsewhere"


def test_a_request_for_no_model_asks_for_the_base():
    names = ModelNames()
    assert names.of(None) is None
    names.learn([])
    names.learn(base("llama", "prod"))
    names.learn(base("other", root="/models/other"))
    assert names.of(None) == "llama"


def test_instances_that_share_one_name_share_all():
    names = ModelNames()
    names.learn(base("prod", "small"))
    assert names.learn(base("llama", "prod")) == "prod"
    assert names.of("llama") == names.of("small") == "prod"


def test_models_that_are_loaded_from_elsewhere_are_apart():
    names = ModelNames()
    canonical = names.learn([*base("a", "b"), *base("c", root="/models/c")])
    assert canonical == "a"
    assert (names.of("b"), names.of("c")) == ("a", "c")


def test_without_roots_each_name_is_a_model():
    names = ModelNames()
    names.learn([ModelCard("a"), ModelCard("b")])
    assert (names.of("a"), names.of("b")) == ("a", "b")


def test_names_are_bounded():
    names = ModelNames()
    for i in range(MAX_NAMES + 5):
        names.learn(base(f"a{i}", f"b{i}"))
    last = f"b{MAX_NAMES + 4}"
    assert names.of(last) == last


@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True), max_size=8))
def test_a_name_keeps_its_meaning_and_means_the_same_everywhere(instances):
    names = ModelNames()
    before: dict[str, str | None] = {}
    for served in instances:
        canonical = names.learn(base(*served))
        for name, meaning in before.items():
            assert names.of(name) == meaning
        before |= {name: names.of(name) for name in served}
        assert canonical in before.values()
        assert all(names.of(meaning) == meaning for meaning in before.values())
