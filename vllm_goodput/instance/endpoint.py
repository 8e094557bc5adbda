# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Our endpoint plugin: `GET /goodput/v1/info`, guarded by the pool's secret, and the SLO middleware."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

from vllm_goodput import __version__
from vllm_goodput.compat import vllm_version
from vllm_goodput.errors import RequestError
from vllm_goodput.instance.auth import SECRET_HEADER, require_pool
from vllm_goodput.instance.metrics import InstanceMetrics
from vllm_goodput.instance.notes import emulation_note
from vllm_goodput.instance.slo_middleware import SLOMiddleware
from vllm_goodput.plugin import active_config

router = APIRouter()


class GoodputEndpoint:
    """Satisfies vLLM's EndpointPlugin protocol."""

    name = "goodput"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes and the middleware."""
        config = active_config()
        assert config is not None, "the endpoint plugin is loaded only when enabled"
        app.include_router(router)
        app.add_middleware(SLOMiddleware, default=config.slo.slo, metrics=InstanceMetrics())

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Keep what the routes need; `engine_client` is None on vLLM's render server."""
        state.goodput_engine = engine_client
        state.goodput_args = args


@router.get("/goodput/v1/info")
async def info(request: Request) -> JSONResponse:
    """What this instance is: versions, limits, emulation with its overruns."""
    try:
        require_pool(request.headers.get(SECRET_HEADER), "/goodput/v1/info")
    except RequestError as error:
        return JSONResponse(error.body(), error.status, error.headers)
    engine = request.app.state.goodput_engine
    return JSONResponse(await _info(engine))


@router.get("/goodput/v1/notes")
async def notes(request: Request) -> JSONResponse:
    """What every report of measurements made here must say; open to all."""
    note = emulation_note("instance", await _info(request.app.state.goodput_engine))
    return JSONResponse({"notes": [] if note is None else [note]})


async def _info(engine: Any) -> dict[str, Any]:
    config = active_config()
    answer: dict[str, Any] = {
        "goodput_version": __version__,
        "vllm_version": str(vllm_version()),
        "role": "unified",
        "slo": config.slo.slo.as_dict() if config else {},
    }
    if engine is None:
        return answer
    vllm_config = engine.vllm_config
    answer |= {
        "model": vllm_config.model_config.model,
        "max_model_len": vllm_config.model_config.max_model_len,
        "max_num_seqs": vllm_config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": vllm_config.scheduler_config.max_num_batched_tokens,
        "data_parallel_size": vllm_config.parallel_config.data_parallel_size,
        "block_size": vllm_config.cache_config.block_size,
        "num_gpu_blocks": vllm_config.cache_config.num_gpu_blocks,
        "kv_tokens": _kv_tokens(vllm_config),
    }
    stats: dict[str, Any] = await engine.engine_core.call_utility_async("goodput_stats")
    return answer | stats


def _kv_tokens(vllm_config: Any) -> int | None:
    """Size of the KV cache in tokens, over all data-parallel ranks that this server serves; None if not known.

    vLLM's own figure counts what a hybrid model's groups of layers share; the product is right for others.
    """
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    of_rank = getattr(cache, "kv_cache_size_tokens", None)
    if of_rank:
        local = getattr(parallel, "local_engines_only", False)
        return int(
            of_rank * (parallel.data_parallel_size_local if local else parallel.data_parallel_size)
        )
    if not cache.num_gpu_blocks or not cache.block_size:
        return None
    return int(cache.num_gpu_blocks * cache.block_size)
