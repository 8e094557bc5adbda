# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""How a trace is replayed: the endpoint, the request bodies and the client's limits."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from vllm_goodput.errors import ConfigError

FIRST_TOKEN_ID = 3  # 0 to 2 are usually padding, begin and end of sequence
# Overriding these would make the client misread the answer or send another prompt.
FIXED_BODY_FIELDS = frozenset(["prompt", "messages", "stream", "stream_options", "n"])


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Settings of one replay.

    Args:
        url: base URL of an OpenAI-compatible server, with or without `/v1`.
        model: model name; None asks `GET /v1/models` and takes the first.
        endpoint: `completions` (exact prompt lengths by token ids) or `chat` (words).
        stream: ask for server-sent events; without them TTFT is E2EL and TPOT is not measured.
        ignore_eos: generate exactly `output_len` tokens (`ignore_eos` and `min_tokens` are vLLM's fields).
        vocab_size: made-up prompts draw token ids from [3, vocab_size).
        seed: of the made-up prompts.
        share_session_prefix: prompts of one session begin alike, as an agent's turns do.
        extra_body: more fields of every request's JSON body.
        headers: more HTTP headers.
        api_key: bearer token, or None.
        timeout_s: limit on one request, seconds.
        run_id: begin of every `x-request-id`; unique per run.

    Raises:
        ConfigError: a value is out of range.
    """

    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    stream: bool = True
    ignore_eos: bool = True
    vocab_size: int = 1000
    seed: int = 0
    share_session_prefix: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    run_id: str = field(default_factory=lambda: f"bench-{uuid.uuid4().hex[:10]}")

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.vocab_size <= FIRST_TOKEN_ID:
            raise ConfigError(
                f"vocab_size must be greater than {FIRST_TOKEN_ID}, got {self.vocab_size}"
            )
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, got {self.seed}")
        if not 0 < self.timeout_s < 1e9:
            raise ConfigError(f"timeout_s must be a number of seconds > 0, got {self.timeout_s!r}")
        for name in FIXED_BODY_FIELDS & self.extra_body.keys():
            raise ConfigError(f"extra_body: {name!r} cannot be overridden")
        for name, value in self.headers.items():
            if not name or not name.isascii() or not name.isprintable() or set(name) & set(" :"):
                raise ConfigError(f"headers: {name!r} is not a header name")
            if not value.isprintable():
                raise ConfigError(f"headers: the value of {name} has unprintable characters")

    @property
    def base_url(self) -> str:
        """The URL without `/v1` and trailing slashes."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def request_url(self) -> str:
        """Where requests are posted."""
        path = "chat/completions" if self.endpoint == "chat" else "completions"
        return f"{self.base_url}/v1/{path}"

    @property
    def public_url(self) -> str:
        """`base_url` without credentials, for reports."""
        parts = urlsplit(self.base_url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise ConfigError(f"url must be http(s)://HOST[:PORT][/PATH], got {url!r}")
