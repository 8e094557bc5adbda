# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
from __future__ import annotations

import io
import socket

from vllm_goodput.deploy.machine import free_port, has_accelerator, port_problem
from vllm_goodput.deploy.report import PlainReporter, Status


def test_device_nodes_make_an_accelerator(tmp_path):
    assert not has_accelerator({}, tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not has_accelerator({}, tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_accelerator({}, tmp_path)
    assert not has_accelerator({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)


def test_a_taken_port_is_seen_on_any_address():
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert port_problem("127.0.0.1", port) == f"port {port} on 127.0.0.1 is already in use"
    assert port_problem("127.0.0.1", port) is None


def test_an_address_of_another_machine_is_a_problem():
    assert "203.0.113.1" in port_problem("203.0.113.1", free_port("127.0.0.1"))
    assert "no-such-host.invalid" in port_problem("no-such-host.invalid", 1234)


def test_plain_lines_survive_a_closed_reader():
    out = io.StringIO()
    reporter = PlainReporter(out, io.StringIO())
    status = Status("a", "cpu")
    status.enter("starting")
    reporter.tick(status)
    status.enter("healthy")
    reporter.tick(status)
    assert out.getvalue().startswith("a: starting [cpu]\na: healthy after ")
    out.close()
    reporter.line("into the void")
