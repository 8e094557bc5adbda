# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput predict`: what a length model says of a request, or of many."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vllm_goodput.cli.output import make_console
from vllm_goodput.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vllm_goodput.predictor.model import MoEModel

BATCH = 512
GENERAL_EXPERT = "(general)"
Prediction = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--body",
        "--chat-body",
        metavar="FILE|-",
        help="JSON body of an OpenAI completion or chat request; - reads standard input",
    )
    what.add_argument("--prompt", metavar="TEXT|-", help="a prompt; - reads standard input")
    what.add_argument(
        "--batch",
        metavar="FILE|-",
        help="JSONL of such bodies; writes a line of JSON for each, in order",
    )
    what.add_argument("--card", action="store_true", help="print the model's card as JSON")
    add = parser.add_argument
    add("--model", metavar="FILE", help="model file; the one in the package if not given")
    add("--task", help="declared task type; else vllm_xargs.task of the body, else by the text")
    add("--llm", metavar="NAME", help="model that will answer; else `model` of the body")
    add("--prompt-len", type=int, metavar="N", help="prompt length, tokens; estimated if not given")
    add("--max-tokens", type=int, metavar="N", help="limit on output tokens; else the body's")
    add(
        "--generated", type=int, metavar="N", help="predict also what is left after N output tokens"
    )
    add(
        "--quantiles",
        nargs="+",
        type=float,
        metavar="Q",
        help="levels in (0, 1) to print; the model's own if not given",
    )
    add("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Predict and print."""
    from vllm_goodput.predictor import store

    for name in ("prompt_len", "max_tokens", "generated"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    for level in args.quantiles or ():
        if not 0.0 < level < 1.0:
            raise ConfigError(f"--quantiles must lie between 0 and 1, got {level}")
    model = store.load(Path(args.model)) if args.model else store.default_model()
    if args.card:
        _write_json(model.card, indent=True)
    elif args.batch is not None:
        lines = _bodies(args.batch)
        while bodies := list(islice(lines, BATCH)):
            for prediction in predict(model, bodies, args):
                _write_json(prediction)
    else:
        (prediction,) = predict(model, [_body(args)], args)
        if args.json:
            _write_json(prediction, indent=True)
        else:
            _print(prediction)
    return 0


def predict(
    model: MoEModel, bodies: list[dict[str, Any]], args: argparse.Namespace
) -> Iterator[Prediction]:
    """Predictions for decoded request bodies; `args` are the command line's, over what the bodies say."""
    from vllm_goodput.gateway.prompt_len import PromptLengths
    from vllm_goodput.predictor.distribution import QuantileDistribution
    from vllm_goodput.predictor.features import extract
    from vllm_goodput.predictor.view import view_of

    lengths = PromptLengths()
    views, tasks = [], []
    for body in bodies:
        chat = "messages" in body
        prompt_len = args.prompt_len or lengths.estimate(body, chat)
        limit = args.max_tokens or _max_tokens(body)
        views.append(view_of({**body, **_named(args.llm)}, chat, prompt_len, limit))
        tasks.append(args.task or _task(body))
    features = extract([(view, None) for view in views])
    quantiles, gate = model.predict(features, [view.model for view in views], tasks)
    levels = args.quantiles or model.levels.tolist()
    experts = [*model.gate.tasks, GENERAL_EXPERT]
    for view, task, logs, weights in zip(views, tasks, quantiles, gate, strict=True):
        cap = float(view.max_tokens) if view.max_tokens else float("inf")
        lengths_of = QuantileDistribution(model.levels.tolist(), logs.tolist(), cap)
        found: Prediction = {
            "model": view.model or None,
            "task": task,
            "prompt_len": view.prompt_len,
            "max_tokens": view.max_tokens,
            "quantiles": {f"{q:g}": round(lengths_of.quantile(q), 1) for q in levels},
            "experts": {
                name: round(float(weight), 3)
                for name, weight in sorted(
                    zip(experts, weights, strict=True), key=lambda pair: -pair[1]
                )
                if weight > 0
            },
        }
        if args.generated is not None:
            left = {f"{q:g}": round(lengths_of.remaining(args.generated, q), 1) for q in levels}
            found |= {"generated": args.generated, "remaining": left}
        yield found


def _body(args: argparse.Namespace) -> dict[str, Any]:
    """The one body that was asked about."""
    if args.prompt is not None:
        text = args.prompt
        if text == "-":
            text = b"".join(_lines("-")).decode(errors="replace")
        return {"prompt": text}
    return _decode(b"".join(_lines(args.body)), _name(args.body))


def _bodies(path: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield _decode(line, f"{_name(path)}:{number}")


def _lines(path: str) -> Iterable[bytes]:
    if path == "-":
        yield from sys.stdin.buffer
        return
    try:
        with open(path, "rb") as file:
            yield from file
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _decode(raw: bytes, where: str) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    if not isinstance(body, dict) or not ("messages" in body or "prompt" in body):
        raise DataError(f"{where}: a request body with messages or prompt is expected")
    return body


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _named(llm: str | None) -> dict[str, str]:
    return {"model": llm} if llm else {}


def _task(body: dict[str, Any]) -> str | None:
    xargs = body.get("vllm_xargs")
    task = xargs.get("task") if isinstance(xargs, dict) else None
    return task if isinstance(task, str) and task else None


def _max_tokens(body: dict[str, Any]) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if "messages" in body else ("max_tokens",)
    value = next((body[name] for name in names if body.get(name) is not None), None)
    valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if valid else None


def _write_json(value: object, *, indent: bool = False) -> None:
    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    sys.stdout.buffer.write(orjson.dumps(value, option=option))
    sys.stdout.buffer.flush()


def _print(prediction: Prediction) -> None:
    from vllm_goodput.bench.report import terminal_table

    console = make_console(stderr=False)
    columns = ["output tokens"]
    rows = [[f"q{q}", f"{length:.0f}"] for q, length in prediction["quantiles"].items()]
    if "generated" in prediction:
        columns.append(f"left after {prediction['generated']}")
        for row, length in zip(rows, prediction["remaining"].values(), strict=True):
            row.append(f"{length:.0f}")
    console.print(terminal_table("quantile", columns, rows))
    weights = [[name, f"{weight:.1%}"] for name, weight in prediction["experts"].items()]
    console.print(terminal_table("expert", ["weight"], weights))
    console.print(f"prompt: {prediction['prompt_len']} tokens", highlight=False)
