# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From a trace row to an HTTP request: an OpenAI body and headers.

Made-up prompts are deterministic in the seed and, in this order of preference, the Mooncake block's hash id, the
session or the row's index, so that what shares a prefix in the trace really shares it in the engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from vllm_goodput.bench.options import FIRST_TOKEN_ID, ReplayOptions
from vllm_goodput.bench.row import PREFIX_BLOCK_LEN, TraceRow
from vllm_goodput.errors import ConfigError
from vllm_goodput.slo import METRICS, SESSION_HEADER, SLO_HEADERS, TASK_HEADER

_ROW, _SESSION, _BLOCK = 0, 1, 2  # first word of a stream's key
_WORDS = tuple(
    """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book
    eye job word business issue side kind head house service friend father power hour game line
    end member law car city name team minute idea body back parent face level office door health
    person art war history party result change morning reason research girl guy moment air
    teacher force order
    """.split()  # noqa: SIM905
)


def check_rows(rows: Iterable[TraceRow], options: ReplayOptions) -> None:
    """Make sure that every row can be sent.

    Raises:
        ConfigError: a row has token ids, which the chat endpoint does not take, or messages, which the other does not.
    """
    for index, row in enumerate(rows):
        if options.endpoint != "chat" and row.messages is not None:
            raise ConfigError(
                f"row {index} of the trace has messages, which only the chat endpoint takes; use chat"
            )
        if options.endpoint == "chat" and isinstance(row.prompt, list):
            raise ConfigError(
                f"row {index} of the trace has token ids, which the chat endpoint does not take; use completions"
            )


def request_body(row: TraceRow, index: int, model: str, options: ReplayOptions) -> bytes:
    """The JSON body of one request.

    Args:
        row: the request.
        index: its place in the replayed trace.
        model: model name.
        options: of the replay.
    """
    body: dict[str, Any] = {"model": model}
    if options.endpoint == "chat":
        messages = row.messages or (("user", _text(row, index, options)),)
        body["messages"] = [{"role": role, "content": content} for role, content in messages]
    else:
        body["prompt"] = row.prompt if row.prompt is not None else prompt_ids(row, index, options)
    body |= {"max_tokens": row.output_len, "temperature": 0}
    if options.ignore_eos:
        body |= {"min_tokens": row.output_len, "ignore_eos": True}
    body["stream"] = options.stream
    if options.stream:
        body["stream_options"] = {"include_usage": True}
    return orjson.dumps(body | dict(options.extra_body))


def request_headers(row: TraceRow, index: int, options: ReplayOptions) -> dict[str, str]:
    """The HTTP headers of one request; `options.headers` win."""
    headers = {"Content-Type": "application/json", "x-request-id": f"{options.run_id}-{index}"}
    for metric in METRICS:
        value = getattr(row.slo, f"{metric}_ms")
        if value is not None:
            headers[SLO_HEADERS[metric][0]] = repr(float(value))
    if row.task:
        headers[TASK_HEADER] = row.task
    if row.session:
        headers[SESSION_HEADER] = row.session
    if options.api_key:
        headers["Authorization"] = f"Bearer {options.api_key}"
    given = {name.lower() for name in options.headers}
    kept = {name: value for name, value in headers.items() if name.lower() not in given}
    return kept | dict(options.headers)


def prompt_ids(row: TraceRow, index: int, options: ReplayOptions) -> list[int]:
    """`row.prompt_len` made-up token ids in [3, vocab_size)."""
    seed, vocab, length = options.seed, options.vocab_size, row.prompt_len
    ids: list[int] = []
    for hash_id in (row.prefix_ids or ())[: -(-length // PREFIX_BLOCK_LEN)]:
        ids += _block(seed, vocab, hash_id)
    if len(ids) < length:
        key = (_ROW, index)
        if row.session and options.share_session_prefix and row.prefix_ids is None:
            digest = hashlib.blake2b(row.session.encode(), digest_size=8).digest()
            key = (_SESSION, int.from_bytes(digest, "little"))
        ids += _stream(seed, vocab, key, length - len(ids))
    return ids[:length]


@lru_cache(maxsize=1024)
def _block(seed: int, vocab: int, hash_id: int) -> tuple[int, ...]:
    return tuple(_stream(seed, vocab, (_BLOCK, hash_id), PREFIX_BLOCK_LEN))


def _stream(seed: int, vocab: int, key: tuple[int, int], length: int) -> list[int]:
    """A stream of ids; a longer one begins with the shorter."""
    ids: list[int] = (
        np.random.default_rng([seed, *key]).integers(FIRST_TOKEN_ID, vocab, size=length).tolist()
    )
    return ids


def _text(row: TraceRow, index: int, options: ReplayOptions) -> str:
    if isinstance(row.prompt, str):
        return row.prompt
    return " ".join(_WORDS[i % len(_WORDS)] for i in prompt_ids(row, index, options))
