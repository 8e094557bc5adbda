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
    from vllm_goodput.predictor.view import MAX_LEN

    for name in ("prompt_len", "max_tokens", "generated"):
        value = getattr(args, name)
        least = 0 if name == "generated" else 1
        if value is not None and not least <= value <= MAX_LEN:
            raise ConfigError(
                f"--{name.replace('_', '-')} must be from {least} to {MAX_LEN}, got {str(value)[:40]}"
            )
    for level in args.quantiles or ():
        if not 0.0 < level < 1.0:
            raise ConfigError(f"--quantiles must lie between 0 and 1, got {level}")
    model = store.default_model() if args.model is None else store.load(Path(args.model))
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
    from vllm_goodput.predictor.features import extract
    from vllm_goodput.predictor.learned import MoEPredictor
    from vllm_goodput.predictor.view import is_length, max_tokens_of, view_of
    from vllm_goodput.router.types import RequestInfo

    lengths = PromptLengths()
    views, tasks = [], []
    for body in bodies:
        chat = "messages" in body
        prompt_len = args.prompt_len or lengths.estimate(body, chat)
        limit = args.max_tokens or max_tokens_of(body, chat)
        if not is_length(limit):
            limit = None
        views.append(view_of({**body, **_named(_clean(args.llm))}, chat, prompt_len, limit))
        tasks.append(_clean(args.task) or _task(body))
    features = extract([(view, None) for view in views])
    _, gate = model.predict(features, [view.model for view in views], tasks)
    infos = [
        RequestInfo("", v.prompt_len, 0.0, task=task, max_tokens=v.max_tokens, view=v)
        for v, task in zip(views, tasks, strict=True)
    ]
    # As a gateway would predict that has seen no request finish yet.
    distributions = MoEPredictor(model).predict_batch(infos)
    levels = args.quantiles or model.levels.tolist()
    experts = [*model.gate.tasks, GENERAL_EXPERT]
    for view, task, lengths_of, weights in zip(views, tasks, distributions, gate, strict=True):
        if args.generated is not None and view.max_tokens and args.generated > view.max_tokens:
            raise ConfigError(
                f"--generated must be at most max_tokens ({view.max_tokens}), got {args.generated}"
            )
        found: Prediction = {
            "model": view.model or None,
            "task": task,
            "prompt_len": view.prompt_len,
            "unknown": _unknown(model, view.model, task),
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


def _unknown(model: MoEModel, llm: str, task: str | None) -> list[str]:
    """What the length model was not trained on."""
    found = [] if llm in model.models else [f"the model {llm!r}" if llm else "a model not named"]
    return found + ([f"the task {task!r}"] if task and task not in model.gate.tasks else [])


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
    if "messages" in body:
        messages = body["messages"]
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise DataError(f"{where}: messages must be a list of objects")
    elif not isinstance(body["prompt"], (str, list)):
        raise DataError(f"{where}: prompt must be text or token ids")
    return body


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _clean(text: str | None) -> str | None:
    """Command lines may hold bytes that are not UTF-8."""
    return text and text.encode("utf-8", "replace").decode()


def _named(llm: str | None) -> dict[str, str]:
    return {"model": llm} if llm else {}


def _task(body: dict[str, Any]) -> str | None:
    xargs = body.get("vllm_xargs")
    task = xargs.get("task") if isinstance(xargs, dict) else None
    return task if isinstance(task, str) and task else None


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
    console.print(f"prompt: about {prediction['prompt_len']} tokens", highlight=False)
    if prediction["unknown"]:
        console.print(
            f"note: {' and '.join(prediction['unknown'])} not in the training data; this is a guess until requests of"
            " this kind finish at the gateway, which learns from each",
            style="yellow",
            markup=False,
            highlight=False,
        )
