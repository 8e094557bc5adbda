# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Stands in for `python -m vllm_goodput.cli`: a small HTTP server that takes the arguments of `serve` and `route`.

Run as `fake_serve.py up ...` it is the real `up` command, whose children are this file again.

Environment, for `serve` as FAKE_*, for `route` as FAKE_GATEWAY_*:
    HEALTHY_AFTER_S   seconds until /health answers 200 (default 0); `never` for never
    EXIT              print this and exit with status 3 before listening
    IGNORE_SIGTERM    1: survive SIGTERM
    CHILD             `polite`: start a child and end it on SIGTERM, as vLLM does with its EngineCore;
                      `stubborn`: start one that ignores SIGTERM, and leave it behind
    SPAM_LINES        so many lines on stdout at once
`GET /info` answers with argv, process ids and the chosen parts of the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
SHOWN_ENV = ("GOODPUT_POOL_SECRET", "OMP_NUM_THREADS", "COLOUR")


class Handler(BaseHTTPRequestHandler):
    healthy_at = 0.0
    children: list[int]

    def do_GET(self):
        if self.path == "/health":
            self.answer(200 if time.monotonic() >= self.healthy_at else 503, b"")
        elif self.path == "/info":
            self.answer(200, json.dumps(self.info()).encode())
        else:
            self.answer(404, b"")

    def info(self):
        env = {name: os.environ.get(name) for name in SHOWN_ENV}
        return {"argv": sys.argv, "pid": os.getpid(), "children": self.children, "env": env}

    def answer(self, status, body):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


def setting(role, name, default=""):
    return os.environ.get(f"FAKE_{'GATEWAY_' if role == 'route' else ''}{name}", default)


def address(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    args, _ = parser.parse_known_args(argv)
    if args.config:
        from vllm_goodput.config import PoolConfig, load_yaml

        pool = load_yaml(args.config, PoolConfig)
        return pool.host, pool.port
    return args.host, args.port


def start_child(kind):
    if not kind:
        return []
    code = STUBBORN if kind == "stubborn" else "import time; time.sleep(600)"
    return [subprocess.Popen([sys.executable, "-S", "-c", code])]


def on_sigterm(role, children):
    def stop(signum, frame):
        if setting(role, "CHILD") == "polite":
            for child in children:
                child.terminate()
                child.wait()
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if setting(role, "IGNORE_SIGTERM") else stop)


def serve(role, argv):
    if message := setting(role, "EXIT"):
        print("a first line")
        print(message, file=sys.stderr)
        sys.exit(3)
    children = start_child(setting(role, "CHILD"))
    on_sigterm(role, children)
    for i in range(int(setting(role, "SPAM_LINES", "0"))):
        print(f"spam {i} " + "x" * 200)
    delay = setting(role, "HEALTHY_AFTER_S", "0")
    Handler.healthy_at = float("inf") if delay == "never" else time.monotonic() + float(delay)
    Handler.children = [child.pid for child in children]
    Server(address(argv), Handler).serve_forever()


def up(argv):
    from vllm_goodput.cli import main
    from vllm_goodput.cli import up as command

    command.run = partial(command.run, command=[sys.executable, __file__])
    return main(argv)


if __name__ == "__main__":
    if sys.argv[1] == "up":
        sys.exit(up(sys.argv[1:]))
    serve(sys.argv[1], sys.argv[2:])
