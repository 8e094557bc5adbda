# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The instance's middleware and endpoint, driven over ASGI."""

from __future__ import annotations

import json

import httpx
import pytest
from prometheus_client import CollectorRegistry

from vllm_goodput.instance.metrics import MAX_TASKS, InstanceMetrics
from vllm_goodput.instance.notes import emulation_note
from vllm_goodput.instance.slo_middleware import SLOMiddleware
from vllm_goodput.slo import SLO

URL = "http://test/v1/completions"


class App:
    """The application behind the middleware: echoes the body in three chunks."""

    def __init__(self, status=200):
        self.status = status
        self.bodies = []

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        for _ in range(2):
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": body})


class Setup:
    def __init__(self, default=None, status=200):
        self.registry = CollectorRegistry()
        self.app = App(status)
        self.metrics = InstanceMetrics(self.registry)
        stack = SLOMiddleware(self.app, default or SLO(), self.metrics)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(stack))

    async def post(self, body, url=URL, **headers):
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(url, content=content, headers=headers)

    def count(self, outcome, task="none"):
        labels = {"task": task, "outcome": outcome}
        return self.registry.get_sample_value("goodput_requests_total", labels) or 0


async def test_bytes_pass_unchanged_and_the_outcome_is_counted():
    setup = Setup(SLO(e2el_ms=60_000))
    response = await setup.post({"a": 1}, x_goodput_task="math")
    assert response.content.endswith(b'{"a": 1}')
    assert setup.app.bodies == [b'{"a": 1}']
    assert setup.count("met", "math") == 1


async def test_a_missed_objective_is_counted_by_metric():
    setup = Setup(SLO(e2el_ms=1e-6))
    await setup.post({})
    assert setup.count("missed") == 1
    labels = {"task": "none", "metric": "e2el"}
    assert setup.registry.get_sample_value("goodput_slo_missed_total", labels) == 1


async def test_error_answers_count_as_failed():
    setup = Setup(status=500)
    await setup.post({})
    assert setup.count("failed") == 1


async def test_bad_and_expired_slos_do_not_reach_the_engine():
    setup = Setup()
    bad = await setup.post({}, x_slo_e2el_ms="x")
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-slo-e2el-ms")
    late = await setup.post({}, x_request_deadline="1")
    assert (late.status_code, late.headers["x-goodput-reject-reason"]) == (422, "expired")
    assert setup.app.bodies == []
    assert setup.count("rejected") == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b'"x"'])
async def test_bodies_that_are_not_objects_are_left_to_vllm(body):
    setup = Setup()
    assert (await setup.post(body)).status_code == 200
    assert setup.app.bodies == [body]


async def test_reserved_fields_need_the_pools_secret(monkeypatch):
    body = {"vllm_xargs": {"goodput_id": "1"}}
    setup = Setup()
    assert (await setup.post(body)).status_code == 403
    monkeypatch.setenv("GOODPUT_POOL_SECRET", "right")
    assert (await setup.post(body, x_goodput_pool_secret="wrong")).status_code == 403
    assert (await setup.post(body, x_goodput_pool_secret="right")).status_code == 200
    assert len(setup.app.bodies) == 1


async def test_other_paths_are_untouched():
    setup = Setup()
    response = await setup.post({}, url="http://test/tokenize", x_slo_e2el_ms="x")
    assert response.status_code == 200


def test_task_labels_are_bounded():
    metrics = InstanceMetrics(CollectorRegistry())
    labels = {metrics.task_label(f"t{i}") for i in range(1000)}
    assert len(labels) == MAX_TASKS + 1
    assert "other" in labels
    assert metrics.task_label("t0") == "t0"


def test_an_invalid_emulation_says_so():
    emulation = {"device": "D", "model": "M", "scale": 2.0, "steps": 10, "overrun_fraction": 0.2}
    assert "NOT A VALID EMULATION" in emulation_note(
        "a", {"emulation": {**emulation, "valid": False}}
    )
    assert "NOT" not in emulation_note("a", {"emulation": {**emulation, "valid": True}})
    assert emulation_note("a", {"emulation": None}) is None
