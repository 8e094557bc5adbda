# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Every error this package raises on purpose.

Each carries a one-line message that names what was wrong, what is required and what was received. Command-line entry
points print that line and exit with `exit_code`; HTTP front ends turn `RequestError` into an OpenAI-shaped answer.
"""

from __future__ import annotations

from typing import Any


class GoodputError(Exception):
    """Base class."""

    exit_code = 1


class ConfigError(GoodputError):
    """A flag, file or environment variable is wrong; the message names its path and the received value."""

    exit_code = 2


class UnsupportedVLLMError(GoodputError):
    """The installed vLLM is missing, outside the supported range, or of an unexpected shape."""

    exit_code = 2


class TraceError(GoodputError):
    """A trace file is unreadable; the message names the file and line."""

    exit_code = 2


class DataError(GoodputError):
    """Training data or a predictor's model file is unusable; the message names the file."""

    exit_code = 2


class DeployError(GoodputError):
    """A deployment could not be started or kept up."""


class RequestError(GoodputError):
    """A request that is answered with an error instead of being served.

    Args:
        message: one line for the caller.
        status: HTTP status.
        code: machine-readable kind, also the OpenAI error's `code`.
        param: the header or body field at fault, if one is.
    """

    def __init__(self, message: str, *, status: int, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    @property
    def headers(self) -> dict[str, str]:
        """Extra response headers."""
        return {}

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        }


class BadRequestError(RequestError):
    """A malformed field (HTTP 400)."""

    def __init__(self, param: str, requirement: str, received: object) -> None:
        super().__init__(
            f"{param} must be {requirement}, got {_short(received)}",
            status=400,
            code="invalid_value",
            param=param,
        )


class ForbiddenError(RequestError):
    """An internal field or endpoint used without the pool's secret (HTTP 403)."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, status=403, code="forbidden", param=param)


class RejectedError(RequestError):
    """A request that is not served because its SLO cannot be met or no capacity is left.

    `infeasible` and `expired` are 422 with `x-should-retry: false`, since routers and clients in front retry 429 and
    5xx; `saturated` is 429 and `no-endpoints` 503, both with `Retry-After`.
    """

    STATUS = {"infeasible": 422, "expired": 422, "saturated": 429, "no-endpoints": 503}  # noqa: RUF012

    def __init__(self, reason: str, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, status=self.STATUS[reason], code=reason)
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """The reason, and whether a retry makes sense."""
        headers = {"x-goodput-reject-reason": self.reason}
        if self.status == 422:
            headers["x-should-retry"] = "false"
        else:
            headers["Retry-After"] = str(max(1, round(self.retry_after_s)))
        return headers


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
