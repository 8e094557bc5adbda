# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From a request body to the keys of its prompt.

A completion's prompt of token IDs gives exact keys, a text gives text keys. A chat is written out in the order of
common chat templates, tools first and then role and content of each message, so that what two chats have in common at
their beginning is common here too. The template's own tokens are not seen: they are spread over the text, as
the estimate of the prompt's length is, and a chat's hits are estimates that are rounded down (Blocks.hit_tokens). What
the engine generates is not seen either before a client sends it back.

No keys (None): batches of prompts, prompts whose cache is not read (prompt_logprobs) or that are not what they seem
(embeddings, truncation), and whatever is malformed; that is the engine's to refuse. Nothing here raises. Work is
bounded by MAX_TEXT_BYTES but for one pass over the list of messages and writing out the tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import orjson

from vllm_goodput.router.prefix import MAX_TEXT_BYTES, Blocks, text_blocks, token_blocks

# Fields that change a prompt from its beginning, on some models; in the seed.
PROMPT_FIELDS = (
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "reasoning_effort",
)
# With these the engine does not look into its cache, or the prompt is another.
UNKEYED_FIELDS = ("prompt_embeds", "prompt_logprobs", "truncate_prompt_tokens")

# Of a part that is no text, longer strings (inlined media) are told apart by three samples of so many characters.
SAMPLE = 1024
# Longer names and salts are refused by engines.
MAX_NAME = 1024


class _OddBodyError(Exception):
    """The body is not as the API has it."""


def prefix_blocks(
    body: Mapping[str, Any], chat: bool, prompt_len: int, model: str | None
) -> Blocks | None:
    """The keys of a body's prompt; None if it has none.

    Args:
        body: decoded body.
        chat: whether it is a chat completion.
        prompt_len: tokens of its prompt, exact or estimated.
        model: the base model or LoRA adapter that it asks for, by the same name whatever alias it uses.
    """
    try:
        _require_name(model)
        salt = _require_name(body.get("cache_salt"))
        if any(body.get(field) is not None for field in UNKEYED_FIELDS):
            return None
        if chat:
            return _of_text(_chat_text(body), body, prompt_len, model, salt)
        if body.get("echo") is True and body.get("logprobs") is not None:
            return None  # the engine computes the prompt's own logprobs
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return _of_text(iter((prompt,)), body, prompt_len, model, salt)
        return token_blocks(prompt, model, salt) if isinstance(prompt, list) else None
    except (_OddBodyError, orjson.JSONEncodeError):
        return None


def _of_text(
    parts: Iterator[str],
    body: Mapping[str, Any],
    prompt_len: int,
    model: str | None,
    salt: str | None,
) -> Blocks | None:
    kept: list[str] = []
    kept_chars = chars = 0
    for part in parts:
        chars += len(part)
        if kept_chars < MAX_TEXT_BYTES:
            part = part[: MAX_TEXT_BYTES - kept_chars]
            kept.append(part)
            kept_chars += len(part)
    if not chars:
        return None
    text = "".join(kept).encode("utf-8", "surrogatepass")
    tokens_per_byte = prompt_len / chars * kept_chars / len(text)
    return text_blocks(text, tokens_per_byte, model, salt, _seed_fields(body))


def _seed_fields(body: Mapping[str, Any]) -> bytes:
    given = {field: body[field] for field in PROMPT_FIELDS if body.get(field) is not None}
    if not given:
        return b""
    written = orjson.dumps(given, option=orjson.OPT_SORT_KEYS)
    return blake2b(written, digest_size=16).digest()


def _chat_text(body: Mapping[str, Any]) -> Iterator[str]:
    """The pieces of a chat; control characters keep apart what a template keeps apart."""
    if body.get("tools"):
        yield "\x1c"
        yield orjson.dumps(body["tools"]).decode()
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise _OddBodyError
    for message in messages:
        if not isinstance(message, Mapping):
            raise _OddBodyError
        yield from _message(message)


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise _OddBodyError
    yield "\x1e"
    yield role
    yield "\x1f"
    if len(message) > 2:
        yield from _extras(message, ("name", "tool_call_id", "reasoning", "reasoning_content"))
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from _part(part)
    elif content is not None:
        raise _OddBodyError
    if len(message) > 2:
        yield from _extras(message, ("tool_calls", "function_call"))


def _extras(message: Mapping[str, Any], fields: tuple[str, ...]) -> Iterator[str]:
    for field in fields:
        value = message.get(field)
        if value:
            yield f"\x1d{field}\x1f"
            yield value if isinstance(value, str) else orjson.dumps(value).decode()


def _part(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif not isinstance(part, Mapping):
        raise _OddBodyError
    elif isinstance(part.get("text"), str):
        yield part["text"]
    else:
        yield "\x1d"
        yield from _references(part, 2)
        yield "\x1f"


def _references(value: Any, depth: int) -> Iterator[str]:
    """What tells one image, sound or video from another: its URL or ID, or samples of an inlined one."""
    if isinstance(value, str):
        yield f"{len(value)}:"
        if len(value) <= 3 * SAMPLE:
            yield value
        else:
            middle = (len(value) - SAMPLE) // 2
            yield value[:SAMPLE]
            yield value[middle : middle + SAMPLE]
            yield value[-SAMPLE:]
    elif isinstance(value, Mapping) and depth > 0:
        for key, inner in value.items():
            yield f"{key}="
            yield from _references(inner, depth - 1)
    else:
        yield orjson.dumps(value).decode()


def _require_name(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_NAME):
        raise _OddBodyError
    return value
