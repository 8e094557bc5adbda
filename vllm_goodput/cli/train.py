# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput train`: a model of output lengths from finished requests, and how good it is."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_goodput import __version__
from vllm_goodput.cli.interrupts import exit_on_interrupt
from vllm_goodput.cli.output import check_output_paths, make_console, write_whole
from vllm_goodput.errors import ConfigError

if TYPE_CHECKING:
    from vllm_goodput.predictor.dataset import Examples
    from vllm_goodput.predictor.evaluation import Predictions
    from vllm_goodput.predictor.model import MoEModel
    from vllm_goodput.predictor.progress import TrainProgress
    from vllm_goodput.predictor.training import TrainSettings

MAX_NAMES = 100  # tasks and models that the card counts one by one
# Per setting: least and greatest value, and what it is.
SETTINGS: dict[str, tuple[float, float, str]] = {
    "seed": (0, 2**31 - 1, "seed of everything random"),
    "folds": (2, 100, "parts of the data that are in turn left out to judge and to calibrate"),
    "rounds": (1, 10_000, "trees of the general expert"),
    "depth": (1, 16, "depth of its trees"),
    "learning_rate": (1e-4, 1.0, "weight of each of its trees"),
    "min_rows": (1, 1_000_000, "least rows in a leaf of its trees"),
    "expert_rounds": (1, 10_000, "trees of each task's expert"),
    "expert_depth": (1, 16, "depth of their trees"),
    "expert_learning_rate": (1e-4, 1.0, "weight of each of their trees"),
    "expert_min_rows": (1, 1_000_000, "least rows in a leaf of their trees"),
    "length_penalty": (0.0, 1e9, "ridge penalty of the text's scores of the length"),
    "task_penalty": (0.0, 1e9, "ridge penalty of the text's scores of the task"),
    "masked": (0.0, 1.0, "fraction of rows seen again without model and session"),
    "threads": (0, 4096, "threads to train with; 0 is one per core"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    from vllm_goodput.predictor.training import TrainSettings

    data = parser.add_argument_group(
        "data", "At least one of --pairs and --log; both may be given."
    )
    data.add_argument(
        "--pairs",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="JSONL files, or folders of *.jsonl, of requests with task, model, session, turn, prompt, output, "
        "prompt_tokens and output_tokens",
    )
    data.add_argument(
        "--log",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="logs of finished requests that a gateway has collected",
    )
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", default="model.npz", metavar="PATH", help="model file")
    output.add_argument("--report", metavar="PATH", help="write a self-contained HTML report")
    output.add_argument("--card", metavar="PATH", help="write the model's card as JSON, too")
    output.add_argument(
        "--date",
        metavar="ISO",
        help="date in the card (ISO 8601, UTC if it names no zone); now if not given. With the same data, settings "
        "and threads, equal dates give equal files",
    )
    output.add_argument(
        "--note",
        action="append",
        default=[],
        metavar="TEXT",
        help="kept in the card, e.g. the data's licence; repeatable",
    )
    settings = parser.add_argument_group("training")
    for setting in fields(TrainSettings):
        low, high, text = SETTINGS[setting.name]
        settings.add_argument(
            f"--{setting.name.replace('_', '-')}",
            type=type(setting.default),
            default=setting.default,
            metavar="N" if isinstance(setting.default, int) else "X",
            help=f"{text}; from {low:g} to {high:g}",
        )


def run(args: argparse.Namespace) -> int:
    """Train, judge, then write; what was there before stays until everything is known."""
    from vllm_goodput.predictor import report, store
    from vllm_goodput.predictor.evaluation import Predictions
    from vllm_goodput.predictor.progress import TrainProgress
    from vllm_goodput.predictor.training import fit

    settings, date = _settings(args), _date(args.date)
    console = make_console(stderr=True)
    check_output_paths(args.output, args.report, args.card, inputs=list(_inputs(args)))
    with TrainProgress(console) as progress:
        data = _read(args, progress)
        progress.expect(_stages(data, settings))
        with exit_on_interrupt():
            trained = fit(data, settings, progress.stage)
    model = trained.model
    predictions = Predictions(data.output_len, data.task, trained.held_out, model.levels)
    card = _card(data, settings, predictions, date, args.note)
    trained = replace(trained, model=replace(model, card=card))
    page = report.render(predictions, trained.model, trained.trees) if args.report else ""
    store.save(Path(args.output), trained)
    if args.report:
        write_whole(args.report, page.encode())
    if args.card:
        write_whole(args.card, _json(card))
    _print(args.output, predictions)
    for warning in warnings(data, model, predictions):
        console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    return 0


def _inputs(args: argparse.Namespace) -> Iterator[str]:
    """Every file that is going to be read."""
    from vllm_goodput.predictor.dataset import pair_files
    from vllm_goodput.predictor.log_reader import rotated

    yield from args.pairs
    yield from map(str, pair_files(map(Path, args.pairs)))
    for path in args.log:
        yield path
        if Path(path).name:
            yield str(rotated(Path(path)))


def _settings(args: argparse.Namespace) -> TrainSettings:
    from vllm_goodput.predictor.training import TrainSettings

    for name, (low, high, _) in SETTINGS.items():
        value = getattr(args, name)
        if not low <= value <= high:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} must be from {low:g} to {high:g}, got {value}")
    return TrainSettings(**{name: getattr(args, name) for name in SETTINGS})


def _date(text: str | None) -> str:
    """The card's date: UTC, whole seconds."""
    try:
        date = datetime.now(UTC) if text is None else datetime.fromisoformat(text)
        date = date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--date must be like 2026-01-31 or 2026-01-31T12:00:00+00:00, got {text!r}"
        ) from None
    return date.strftime("%Y-%m-%dT%H:%M:%SZ")


def _read(args: argparse.Namespace, progress: TrainProgress) -> Examples:
    from vllm_goodput.predictor.dataset import concat, read_pairs

    parts = []
    if args.pairs:
        parts.append(read_pairs([Path(path) for path in args.pairs], progress.rows))
    if args.log:
        from vllm_goodput.predictor.log import read_log

        parts.append(read_log([Path(path) for path in args.log], progress.rows))
    if not parts:
        raise ConfigError("nothing to train on; give --pairs or --log")
    return concat(parts) if len(parts) > 1 else parts[0]


def _stages(data: Examples, settings: TrainSettings) -> int:
    """Stages that training is going to announce: heads, general expert, one per task, calibration."""
    from vllm_goodput.predictor.training import expert_tasks, folds_of

    return 3 + len(expert_tasks(data, folds_of(data.group, settings.folds, settings.seed)))


def _card(
    data: Examples,
    settings: TrainSettings,
    predictions: Predictions,
    date: str,
    notes: list[str],
) -> dict[str, object]:
    """What the model was trained on and how well it did, for people."""
    from vllm_goodput.predictor.features import FEATURE_VERSION

    per_task = {name: scores.as_dict() for name, scores in predictions.per_task().items()}
    return {
        "date": date,
        "vllm_goodput": __version__,
        "feature_version": FEATURE_VERSION,
        "data": {
            "files": data.source,
            "rows": len(data),
            "sessions": len(np.unique(data.session)),
            "tasks": _counts(data.task),
            "models": _counts(data.model),
        },
        "settings": asdict(settings),
        "metrics": {"overall": predictions.overall().as_dict(), "tasks": per_task},
        # Command lines may hold bytes that are not UTF-8.
        "notes": [note.encode("utf-8", "replace").decode() for note in notes],
    }


def _counts(names: np.ndarray[Any, Any]) -> dict[str, int]:
    """Rows per name, the most frequent first; there may be any number of names in a log."""
    found = Counter(names.tolist()).most_common()
    rest = sum(count for _, count in found[MAX_NAMES:])
    return dict(found[:MAX_NAMES]) | ({"(others)": rest} if rest else {})


def _json(card: dict[str, object]) -> bytes:
    import orjson

    return orjson.dumps(card, option=orjson.OPT_INDENT_2) + b"\n"


def _print(path: str, predictions: Predictions) -> None:
    from vllm_goodput.bench.report import terminal_table
    from vllm_goodput.predictor.report import CAPTION, COLUMNS, score_rows

    console = make_console(stderr=False)
    console.print(terminal_table("held out", COLUMNS, score_rows(predictions)))
    console.print(CAPTION, markup=False, highlight=False)
    console.print(f"model: {path}", markup=False, highlight=False, soft_wrap=True)


def warnings(data: Examples, model: MoEModel, predictions: Predictions) -> Iterator[str]:
    """What someone who is about to use the model should know."""
    from vllm_goodput.predictor.training import MAX_TASKS, MIN_TASK_ROWS

    names, counts = np.unique(data.task, return_counts=True)
    known = {"", *model.gate.tasks}
    few = [f"{n} ({c})" for n, c in zip(names, counts, strict=True) if n not in known]
    if few:
        yield (
            f"no expert of their own, declared or not, have these tasks (rows; at least {MIN_TASK_ROWS} that begin with"
            f" different prompts are needed, and the {MAX_TASKS} largest tasks get one): "
            + ", ".join(few[:10])
            + (f" and {len(few) - 10} more" if len(few) > 10 else "")
        )
    overall = predictions.overall()
    if overall.mae_tokens >= overall.baseline_mae_tokens:
        yield (
            f"held-out lengths are off by {overall.mae_tokens:.1f} tokens on average, predicting each task's mean by"
            f" {overall.baseline_mae_tokens:.1f}: the model is of no use yet; train on more requests, a few hundred per"
            " task"
        )
