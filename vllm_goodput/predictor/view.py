# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What a length predictor may know of a request on its arrival.

Text is kept as bounded windows, so that neither memory nor time grows with the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A window keeps this many characters from the head of a text and from its tail.
LAST_HEAD, LAST_TAIL = 512, 512
FIRST_HEAD, FIRST_TAIL = 512, 0
ANSWER_HEAD, ANSWER_TAIL = 256, 256
# Stands between head and tail of a cut text; no n-gram spans it.
BREAK = "\0"

ROLES = ("user", "tool", "assistant", "system", "function", "developer")
# What constrains the answer's form, in rising order.
PLAIN, JSON_OBJECT, JSON_SCHEMA, GRAMMAR = range(4)
MAX_TURNS = 1000


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as the predictor sees it.

    Args:
        model: name of the model asked for.
        prompt_len: prompt tokens, exact or estimated.
        last, first, answer: windows of the last message, of the instructions that the conversation begins with
            (system and first user message, where they are not the last) and of the latest answer in it.
        last_chars, first_chars, answer_chars: full lengths of these, characters.
        turn: answers already in the conversation.
        answer_lens: their lengths, oldest first, tokens (estimated where only text is known); the latest few suffice.
        repeats: whether the last message has been seen in this conversation before.
        role: index in ROLES of who wrote the last message.
        tools: number of tools offered.
        tool_results: number of messages from tools.
        form: PLAIN, JSON_OBJECT, JSON_SCHEMA or GRAMMAR.
        stops: number of stop strings.
        max_tokens: the request's own limit on output tokens.
        chat: whether it is a chat; else a plain prompt.
    """

    model: str = ""
    prompt_len: int = 1
    last: str = ""
    first: str = ""
    answer: str = ""
    last_chars: int = 0
    first_chars: int = 0
    answer_chars: int = 0
    turn: int = 0
    answer_lens: tuple[float, ...] = ()
    repeats: bool = False
    role: int = 0
    tools: int = 0
    tool_results: int = 0
    form: int = PLAIN
    stops: int = 0
    max_tokens: int | None = None
    chat: bool = True


def window(text: str, head: int, tail: int) -> str:
    """`text` itself if short, else its first `head` and last `tail` characters."""
    if len(text) > head + tail:
        text = text[:head] + BREAK + text[-tail:] if tail else text[:head]
    if text.isascii():
        return text
    # Lone surrogates are valid in JSON but not in UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def view_of(
    body: Mapping[str, Any],
    chat: bool,
    prompt_len: int,
    max_tokens: int | None,
    tokens_per_char: float = 0.25,
) -> RequestView:
    """The view of an OpenAI completion or chat body. What is malformed counts as absent.

    Args:
        body: decoded request body.
        chat: whether it is a chat completion.
        prompt_len: prompt tokens.
        max_tokens: limit on output tokens, if valid.
        tokens_per_char: to estimate the lengths of earlier answers.
    """
    common: dict[str, Any] = {
        "model": model if isinstance(model := body.get("model"), str) else "",
        "prompt_len": prompt_len,
        "tools": len(tools) if isinstance(tools := body.get("tools"), list) else 0,
        "form": _form(body),
        "stops": _stops(body.get("stop")),
        "max_tokens": max_tokens,
        "chat": chat,
    }
    if not chat:
        text = _prompt_text(body.get("prompt"))
        return RequestView(last=_last(text), last_chars=len(text), **common)
    messages = body.get("messages")
    parts = [m for m in messages if isinstance(m, Mapping)] if isinstance(messages, list) else []
    return _chat_view(parts, tokens_per_char, common)


def _chat_view(
    messages: Sequence[Mapping[str, Any]], tokens_per_char: float, common: dict[str, Any]
) -> RequestView:
    if not messages:
        return RequestView(**common)
    *earlier, newest = messages
    last = message_text(newest)
    role = newest.get("role")
    answers = [m for m in earlier if m.get("role") == "assistant"]
    latest = message_text(answers[-1]) if answers else ""
    first = _instructions(earlier)
    return RequestView(
        last=_last(last),
        first=window(first, FIRST_HEAD, FIRST_TAIL),
        answer=window(latest, ANSWER_HEAD, ANSWER_TAIL),
        last_chars=len(last),
        first_chars=len(first),
        answer_chars=len(latest),
        turn=min(len(answers), MAX_TURNS),
        answer_lens=tuple(max(1.0, len(message_text(m)) * tokens_per_char) for m in answers[-8:]),
        repeats=any(
            m.get("role") == role and m.get("content") == newest.get("content")
            for m in earlier[-32:]
        ),
        role=ROLES.index(role) if role in ROLES else 0,
        tool_results=sum(m.get("role") in ("tool", "function") for m in messages),
        **common,
    )


def message_text(message: Mapping[str, Any]) -> str:
    """Text of a chat message, its tool calls' names and arguments included."""
    content = message.get("content")
    text = content if isinstance(content, str) else ""
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        text = "\n".join(part for part in parts if isinstance(part, str))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            text += f"{function.get('name')} {function.get('arguments')}"
    return text


def _instructions(earlier: Sequence[Mapping[str, Any]]) -> str:
    """The system message and the first user message, as far as the window can hold."""
    found: list[str] = []
    for role in ("system", "user"):
        message = next((m for m in earlier[:8] if m.get("role") == role), None)
        if message is not None:
            found.append(message_text(message))
    # Each gets its share of the window; one alone gets all of it.
    if len(found) == 2:
        found[0] = found[0][: max(FIRST_HEAD // 2, FIRST_HEAD - len(found[1]))]
    return "\n".join(found)


def _last(text: str) -> str:
    return window(text, LAST_HEAD, LAST_TAIL)


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return next((p for p in prompt if isinstance(p, str)), "")
    return ""


def _form(body: Mapping[str, Any]) -> int:
    if any(body.get(name) for name in ("structured_outputs", "guided_grammar", "guided_regex")):
        return GRAMMAR
    wanted = body.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "json_schema" or body.get("guided_json"):
        return JSON_SCHEMA
    return JSON_OBJECT if kind == "json_object" else PLAIN


def _stops(stop: Any) -> int:
    if isinstance(stop, str):
        return 1
    return len(stop) if isinstance(stop, list) else 0


def is_length(value: Any) -> bool:
    """Whether a value is a usable length in tokens."""
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 1
