# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What the machine lacks and what follows from it for several vLLM engines side by side."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from pathlib import Path

from vllm_goodput.deploy.flags import Flag

# Without these every CPU engine would bind its threads to all cores and claim most of the memory
# for its KV cache. Each is added only where deployment.yaml and the environment say nothing about
# it.
CPU_ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
CPU_FLAGS: dict[str, Flag] = {
    "gpu-memory-utilization": 0.1,
    "distributed-executor-backend": "uni",
    "enforce-eager": True,
}
_PARALLEL_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size")


def has_accelerator(environ: Mapping[str, str], dev: Path = Path("/dev")) -> bool:
    """Whether vLLM would find a GPU; reads device nodes only, since importing torch takes seconds.

    NVIDIA (also under WSL) and AMD devices count; an empty CUDA_VISIBLE_DEVICES hides them all.
    """
    if environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    return any(dev.glob("nvidia[0-9]*")) or (dev / "kfd").exists() or (dev / "dxg").exists()


def cpu_flags(flags: Mapping[str, Flag]) -> dict[str, Flag]:
    """The CPU defaults that `flags` leave open; `uni` is one worker, so not with parallel sizes."""
    defaults = dict(CPU_FLAGS)
    if any(flags.get(name) not in (None, 1) for name in _PARALLEL_FLAGS):
        del defaults["distributed-executor-backend"]
    return {name: value for name, value in defaults.items() if name not in flags}


def local_host(host: str) -> str:
    """The address at which this machine reaches a server listening on `host`."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def base_url(host: str, port: int) -> str:
    """`http://host:port`, with brackets around an IPv6 address."""
    host = local_host(host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def port_problem(host: str, port: int) -> str | None:
    """Why a server could not listen on `host`:`port`, or None if it could."""
    try:
        with _bound(host, port):
            return None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} on {host} is already in use"
        return f"cannot listen on {host} port {port}: {error.strerror or error}"


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    with _bound(host, 0) as sock:
        return int(sock.getsockname()[1])


def _bound(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
