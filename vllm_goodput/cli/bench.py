# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput bench`: replay a trace (`run`), compare results (`compare`), make a trace (`generate`)."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vllm_goodput.bench import flags
from vllm_goodput.cli.help import HelpFormatter
from vllm_goodput.cli.limits import allow_many_connections
from vllm_goodput.cli.output import check_output_paths, make_console
from vllm_goodput.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from vllm_goodput.bench import Record, ReplayOptions, Selection, TraceRow

EXIT_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the three subcommands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text, add in (
        ("run", "replay a trace against an OpenAI endpoint and report goodput", flags.add_run),
        ("compare", "compare results of several runs", flags.add_compare),
        ("generate", "write a seeded agentic trace as JSONL", flags.add_generate),
    ):
        action = actions.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=HelpFormatter,
        )
        add(action)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand; returns the exit status."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "run": _run,
        "compare": _compare,
        "generate": _generate,
    }
    return actions[args.action](args)


def _run(args: argparse.Namespace) -> int:
    from vllm_goodput.bench import load_trace, print_result, write_html, write_json
    from vllm_goodput.bench.result import without_requests

    check_output_paths(args.json, args.html, inputs=[args.trace])
    options, selection = _replay_options(args), _selection(args)
    rows = load_trace(args.trace, format=args.format, selection=selection)
    allow_many_connections()
    result = _in_event_loop(_replay(args, rows, options))
    if args.html:
        write_html(result, args.html)
    if args.json:
        write_json(result if args.requests else without_requests(result), args.json)
    print_result(result, make_console(stderr=args.json == "-"))
    if result["interrupted"]:
        return EXIT_INTERRUPTED
    return _verdict(result)


def _verdict(result: dict[str, Any]) -> int:
    """1 when every request failed, with the first error on standard error."""
    if result["failed"] < result["offered"]:
        return 0
    error = next((row["error"] for row in result["requests"] if "error" in row), "-")
    hint = "; lower --vocab-size" if "out of vocabulary" in error else ""
    print(f"vllm-goodput: error: every request failed: {error}{hint}", file=sys.stderr)
    return 1


async def _replay(
    args: argparse.Namespace, rows: list[TraceRow], options: ReplayOptions
) -> dict[str, Any]:
    from dataclasses import replace

    from vllm_goodput.bench import build_result, replay, trace_duration_s, trace_sha256
    from vllm_goodput.bench.endpoint import preflight, server_notes
    from vllm_goodput.bench.progress import ReplayProgress

    options = replace(options, model=await preflight(options))
    console = make_console(stderr=True)
    _announce(console, rows, options)
    stop = _stop_on_interrupt()
    async with ReplayProgress(len(rows), console) as progress:
        records = await replay(rows, options, observer=progress, stop=stop)
    return build_result(
        records,
        _elapsed_s(records) if stop.is_set() else trace_duration_s(rows),
        settings=_settings(args, options),
        trace={
            "name": Path(args.trace).name,
            "sha256": trace_sha256(args.trace),
            "rows": len(rows),
        },
        notes=[*args.note, *await server_notes(options)],
        interrupted=stop.is_set(),
        streamed=options.stream,
        exact_lengths=options.ignore_eos,
    )


def _announce(console: Console, rows: list[TraceRow], options: ReplayOptions) -> None:
    text = (
        f"replaying {len(rows)} requests over {rows[-1].arrival_s:.1f} s against {options.public_url} "
        f"(model {options.model})"
    )
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _elapsed_s(records: list[Record]) -> float:
    """How much of the trace had been replayed when the run was cut short."""
    return max((record.arrival_s for record in records), default=0.0)


def _stop_on_interrupt() -> asyncio.Event:
    """An event that the first Ctrl-C sets; a second one ends the command at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupted)
    return stop


def _in_event_loop(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not to be had on Windows
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _compare(args: argparse.Namespace) -> int:
    from vllm_goodput.bench import compare, read_json, write_json

    check_output_paths(args.json, args.html, inputs=args.results)
    results: dict[str, dict[str, Any]] = {}
    for path in args.results:
        name = Path(path).stem
        results[path if name in results else name] = read_json(path)
    comparison = compare(results, args.baseline)
    if args.html:
        comparison.write_html(args.html)
    if args.json:
        write_json(comparison.as_dict(), args.json)
    comparison.print(make_console(stderr=args.json == "-"))
    return 0


def _generate(args: argparse.Namespace) -> int:
    from vllm_goodput.bench import ReferenceDevice, agentic_mix, write_trace

    mix = None
    if args.mix:
        mix = {name: _weight(name, text) for name, text in _pairs(args.mix, "--mix").items()}
    rows = agentic_mix(
        args.seed,
        args.duration_s,
        args.rate,
        mix=mix,
        cv=args.cv,
        prompt_scale=args.prompt_scale,
        output_scale=args.output_scale,
        max_prompt_len=args.max_prompt_len,
        max_output_len=args.max_output_len,
        turn_gap_s=args.turn_gap_s,
        slo_scale=args.slo_scale,
        reference=ReferenceDevice(
            args.ref_ttft_ms / 1e3, args.ref_tpot_ms / 1e3, args.ref_prompt_ms / 1e3
        ),
    )
    write_trace(rows, args.output)
    print(f"{args.output}: {len(rows)} requests over {rows[-1].arrival_s:.1f} s")
    return 0


def _selection(args: argparse.Namespace) -> Selection:
    from vllm_goodput.bench import Selection
    from vllm_goodput.slo import parse_slo_args

    return Selection(
        start_s=args.start_s,
        duration_s=args.duration_s,
        limit=args.limit,
        time_scale=args.time_scale,
        request_rate=args.request_rate,
        max_prompt_len=args.max_prompt_len,
        max_output_len=args.max_output_len,
        default_slo=parse_slo_args(args.goodput, "--goodput"),
        slo_scale=args.slo_scale,
    )


def _replay_options(args: argparse.Namespace) -> ReplayOptions:
    from vllm_goodput.bench import ReplayOptions

    return ReplayOptions(
        url=args.url,
        model=args.model,
        endpoint=args.endpoint,
        stream=args.stream,
        ignore_eos=args.ignore_eos,
        vocab_size=args.vocab_size,
        seed=args.seed,
        share_session_prefix=args.share_session_prefix,
        extra_body=_json_object(args.extra_body, "--extra-body"),
        headers=_pairs(args.header, "--header"),
        api_key=args.api_key or os.environ.get("OPENAI_API_KEY"),
        timeout_s=args.timeout_s,
    )


def _settings(args: argparse.Namespace, options: ReplayOptions) -> dict[str, Any]:
    """How the run was made, without secrets."""
    hidden = ("command", "action", "trace", "json", "html", "requests", "api_key", "header", "note")
    settings = {name: value for name, value in vars(args).items() if name not in hidden}
    return settings | {
        "url": options.public_url,
        "model": options.model,
        "headers": sorted(options.headers),
        "run_id": options.run_id,
    }


def _pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{flag}: expected KEY=VALUE, got {text!r}")
        pairs[name] = value
    return pairs


def _weight(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--mix: the weight of {name} must be a number, got {text!r}") from None


def _json_object(text: str, flag: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{flag}: not JSON: {error}, got {text!r}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{flag}: expected a JSON object, got {text!r}")
    return value
