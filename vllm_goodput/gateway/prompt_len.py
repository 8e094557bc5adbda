# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Prompt length of a request body: exact for token IDs, else characters times a learned ratio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INITIAL_TOKENS_PER_CHAR = 0.25
WEIGHT = 0.05  # of a new observation in the running ratio
MAX_MODELS = 1000
MAX_TOKENS_PER_CHAR = 4.0
ESTIMATE_SLACK = 0.25  # an estimated prompt may be shorter by this fraction


class PromptLengths:
    """Estimates prompt tokens and learns each model's tokens per character from usage."""

    def __init__(self) -> None:
        self._ratio: dict[str, float] = {}

    def estimate(self, body: Mapping[str, Any], chat: bool) -> int:
        """Prompt tokens of a completion or chat body."""
        exact, chars = measure(body, chat)
        return max(1, exact + round(chars * self.tokens_per_char(body)))

    def context_left(self, body: Mapping[str, Any], chat: bool, context_len: int) -> int:
        """Tokens that a context of `context_len` leaves for the output; rather too many for an estimated prompt."""
        exact, chars = measure(body, chat)
        text = chars * self.tokens_per_char(body) * (1.0 - ESTIMATE_SLACK)
        return max(1, context_len - exact - round(text))

    def tokens_per_char(self, body: Mapping[str, Any]) -> float:
        """The ratio of the model that the body asks for."""
        return self._ratio.get(_model(body), INITIAL_TOKENS_PER_CHAR)

    def learn(self, body: Mapping[str, Any], chat: bool, prompt_len: int) -> None:
        """The true prompt length of a body."""
        exact, chars = measure(body, chat)
        model = _model(body)
        if chars < 16 or prompt_len <= exact:
            return
        if model not in self._ratio and len(self._ratio) >= MAX_MODELS:
            return
        ratio = min(MAX_TOKENS_PER_CHAR, (prompt_len - exact) / chars)  # usage may say anything
        old = self._ratio.get(model, INITIAL_TOKENS_PER_CHAR)
        self._ratio[model] = old + WEIGHT * (ratio - old)


def _model(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else ""


def measure(body: Mapping[str, Any], chat: bool) -> tuple[int, int]:
    """(tokens given as IDs, characters given as text) of a body's messages (chat) or prompt."""
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return 0, 0
        return 0, sum(_content_chars(m.get("content")) for m in messages if isinstance(m, Mapping))
    return _prompt(body.get("prompt"))


def _prompt(prompt: Any) -> tuple[int, int]:
    if isinstance(prompt, str):
        return 0, len(prompt)
    if not isinstance(prompt, list) or not prompt:
        return 0, 0
    if isinstance(prompt[0], int):
        return len(prompt), 0
    # A batch: several texts, or several lists of token IDs; nothing deeper is valid.
    return (
        sum(len(p) for p in prompt if isinstance(p, list)),
        sum(len(p) for p in prompt if isinstance(p, str)),
    )


def _content_chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return sum(len(text) for text in texts if isinstance(text, str))
