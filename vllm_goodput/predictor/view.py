# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What a length predictor may know of a request on its arrival.

Text is kept as bounded windows, so that neither memory nor time grows with the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A window keeps this many characters from the head of a text and from its tail.
LAST_HEAD, LAST_TAIL = 384, 384
FIRST_HEAD, FIRST_TAIL = 384, 0
ANSWER_HEAD, ANSWER_TAIL = 192, 192
# Stands between head and tail of a cut text; no n-gram spans it.
BREAK = "\0"

ROLES = ("user", "tool", "assistant", "system", "function", "developer")
# What constrains the answer's form, in rising order.
PLAIN, JSON_OBJECT, JSON_SCHEMA, GRAMMAR = range(4)
GRAMMAR_FIELDS = ("structured_outputs", "guided_grammar", "guided_regex", "guided_choice")
TOOL_ROLES = ("tool", "function")
MAX_TURNS = 1000
MAX_LEN = 10**9  # tokens
# Of a conversation, so many of the latest answers are measured, and so many messages searched for a repetition.
KNOWN_ANSWERS = 4
REPEAT_MESSAGES = 32


@dataclass(slots=True, eq=False)  # not frozen: that would double the time to make one
class RequestView:
    """A request as the predictor sees it; never changed once made.

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
    if not isinstance(messages, list):
        return RequestView(**common)
    if not all(isinstance(m, dict) for m in messages):
        messages = [m for m in messages if isinstance(m, dict)]
    return _chat_view(messages, tokens_per_char, common)


def _chat_view(
    messages: list[dict[str, Any]], tokens_per_char: float, common: dict[str, Any]
) -> RequestView:
    if not messages:
        return RequestView(**common)
    newest = messages[-1]
    roles = [m.get("role") for m in messages]
    role = roles.pop()
    last = message_text(newest)
    first = _instructions(messages, roles)
    answers = [i for i, r in enumerate(roles) if r == "assistant"] if "assistant" in roles else []
    latest = [message_text(messages[i]) for i in answers[-KNOWN_ANSWERS:]]
    answer = latest[-1] if latest else ""
    content = newest.get("content")
    return RequestView(
        last=_last(last),
        first=window(first, FIRST_HEAD, FIRST_TAIL),
        answer=window(answer, ANSWER_HEAD, ANSWER_TAIL),
        last_chars=len(last),
        first_chars=len(first),
        answer_chars=len(answer),
        turn=min(len(answers), MAX_TURNS),
        answer_lens=tuple([max(1.0, len(text) * tokens_per_char) for text in latest]),
        repeats=isinstance(content, str)
        and any(m.get("content") == content for m in messages[-REPEAT_MESSAGES:-1]),
        role=ROLES.index(role) if role in ROLES else 0,
        tool_results=roles.count("tool") + roles.count("function") + (role in TOOL_ROLES),
        **common,
    )


def message_text(message: dict[str, Any]) -> str:
    """Text of a chat message, its tool calls' names and arguments included."""
    content = message.get("content")
    calls = message.get("tool_calls")
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        text = "\n".join(part for part in parts if isinstance(part, str))
    else:
        text = ""
    if not calls or not isinstance(calls, list):
        return text
    functions = (call.get("function") for call in calls if isinstance(call, dict))
    return text + "\n".join(
        f"{_text(f.get('name'))} {_text(f.get('arguments'))}"
        for f in functions
        if isinstance(f, dict)
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _instructions(messages: list[dict[str, Any]], roles: list[Any]) -> str:
    """The system message and the first user message but the last, as far as the window can hold."""
    system = message_text(messages[roles.index("system")]) if "system" in roles else ""
    user = message_text(messages[roles.index("user")]) if "user" in roles else ""
    if not system or not user:
        return system or user
    # Each gets its share of the window.
    return f"{system[: max(FIRST_HEAD // 2, FIRST_HEAD - len(user))]}\n{user[:FIRST_HEAD]}"


def _last(text: str) -> str:
    return window(text, LAST_HEAD, LAST_TAIL)


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return prompt[0] if prompt and isinstance(prompt[0], str) else ""
    return ""


def _form(body: Mapping[str, Any]) -> int:
    if "response_format" in body:
        wanted = body["response_format"]
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        if kind in ("json_schema", "json_object"):
            return JSON_SCHEMA if kind == "json_schema" else JSON_OBJECT
    if body.get("guided_json"):
        return JSON_SCHEMA
    return GRAMMAR if any(body.get(name) for name in GRAMMAR_FIELDS) else PLAIN


def _stops(stop: Any) -> int:
    if isinstance(stop, str):
        return 1
    return len(stop) if isinstance(stop, list) else 0


def max_tokens_of(body: Mapping[str, Any], chat: bool) -> int | None:
    """The limit on output tokens that vLLM will apply; None where absent or malformed, which vLLM refuses itself."""
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    value = next((body[name] for name in names if body.get(name) is not None), None)
    valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if valid else None


def is_length(value: Any) -> bool:
    """Whether a value is a usable length in tokens."""
    return isinstance(value, (int, float)) and 1 <= value <= MAX_LEN
