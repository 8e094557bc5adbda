# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The parts of the comparison of length predictors: held-out folds, what was never trained on, and less training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import predictor_baselines as baselines
from benchmarks.predictor_data import Pairs
from benchmarks.predictor_scores import Forecast, joined, repeated_inputs, scores
from benchmarks.predictor_steps import Steps
from vllm_goodput.predictor.metrics import pinball
from vllm_goodput.predictor.model import MoEModel
from vllm_goodput.predictor.training import LEVELS, TrainSettings, fit, folds_of

FOLDS = 5
# Figures of fewer rows say little: such tasks and models are neither left out nor held to a target.
MIN_ROWS = 200
# On something new, the comparison begins when so many requests have finished.
WARM_UP = 50

TASK_MEAN = "per-task mean"
HISTOGRAM = "running histogram"
GLOBAL = "global XGBoost"
GENERAL = "general expert"
MOE = "MoE"
UNDECLARED = "MoE, task undeclared"
ONLINE = "MoE online"
ORACLE = "oracle"


@dataclass(frozen=True)
class Plan:
    """How much to do.

    Args:
        share: of the groups of sessions, to work with.
        folds: how many of the FOLDS to hold out in turn.
        settings: of training, for the folds and the learning curve.
        light: of training, for what is left out (there are many, and what was never seen is hardly told by more trees).
        light_share: of the groups, to train on there.
        left_out: at most so many tasks, and so many models, the smallest first.
        curve: shares of the training groups.
        rounds: of the measurement of latency.
    """

    share: float
    folds: int
    settings: TrainSettings
    light: TrainSettings
    light_share: float
    left_out: int
    curve: Sequence[float]
    rounds: int


@dataclass(frozen=True)
class HeldOut:
    """What each method said of rows that it was not trained on.

    Args:
        pairs: the rows, fold after fold.
        forecasts: by method.
        model: the mixture of the first fold.
    """

    pairs: Pairs
    forecasts: dict[str, Forecast]
    model: MoEModel

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every method's scores, overall (task None) and per task."""
        log_len, task = self.pairs.examples.log_len, self.pairs.examples.task
        for method, forecast in self.forecasts.items():
            head = {"part": "held out", "method": method}
            yield {**head, "task": None, **scores(log_len, forecast)}
            for name in np.unique(task):
                own = task == name
                yield {**head, "task": str(name), **scores(log_len[own], forecast.take(own))}


def split(pairs: Pairs, fold: int, seed: int) -> tuple[Pairs, Pairs]:
    """Training and held-out rows of a fold; sessions that begin with the same prompt stay together."""
    out = folds_of(pairs.examples.group, FOLDS, seed) == fold
    return pairs.take(~out), pairs.take(out)


def in_folds(pairs: Pairs, folds: int, seed: int) -> Pairs:
    """The held-out rows of the first so many folds, fold after fold."""
    fold = folds_of(pairs.examples.group, FOLDS, seed)
    return pairs.take(np.concatenate([np.flatnonzero(fold == i) for i in range(folds)]))


def held_out(pairs: Pairs, plan: Plan, seed: int, skip: Collection[str], steps: Steps) -> HeldOut:
    """All methods on the same held-out rows."""
    said: dict[str, list[Forecast]] = defaultdict(list)
    models: list[MoEModel] = []
    for fold in range(plan.folds):
        train, test = split(pairs, fold, seed)
        name = f"fold {fold + 1} of {plan.folds}"
        steps.begin(f"{name}: training the mixture of experts")
        model = fit(train.examples, plan.settings, steps.stage).model
        models.append(model)
        seen, unseen = train.examples, test.examples
        task_mean = baselines.task_mean(seen, unseen)
        said["constant"].append(baselines.constant(seen, unseen))
        said[TASK_MEAN].append(task_mean)
        said["per-task median"].append(baselines.task_median(task_mean))
        said[HISTOGRAM].append(baselines.running_histogram(train, test))
        if "global" not in skip:
            steps.begin(f"{name}: training the global XGBoost")
            said[GLOBAL].append(baselines.global_xgboost(seen, unseen, plan.settings))
        said[GENERAL].append(baselines.general_expert(model, unseen))
        said[MOE].append(baselines.frozen(model, unseen))
        said[UNDECLARED].append(baselines.frozen(model, unseen, declared=False))
        if "online" not in skip:
            steps.begin(f"{name}: predicting online")
            said[ONLINE].append(baselines.online(model, test))
        said[ORACLE].append(baselines.oracle(unseen))
    return HeldOut(
        in_folds(pairs, plan.folds, seed),
        {method: joined(parts) for method, parts in said.items()},
        models[0],
    )


def left_out(pairs: Pairs, limit: int) -> list[tuple[str, str]]:
    """("task" or "model", name) of everything large enough to be left out, the smallest first."""
    found = []
    for kind, labels in (("task", pairs.examples.task), ("model", pairs.examples.model)):
        names, counts = np.unique(labels, return_counts=True)
        order = [i for i in np.argsort(counts, kind="stable") if counts[i] >= MIN_ROWS]
        found += [(kind, str(names[i])) for i in order[:limit]]
    return found


def unseen(
    pairs: Pairs, kind: str, name: str, plan: Plan, seed: int, steps: Steps
) -> dict[str, Any]:
    """A task or model that the mixture was not trained on, against a histogram that starts with it.

    Where a model is left out, others' answers to the same prompts stay among the training rows: a new model meets
    known traffic.
    """
    steps.begin(f"unseen {kind} {name}")
    labels = pairs.examples.task if kind == "task" else pairs.examples.model
    own = labels == name
    train = pairs.take(~own).share(plan.light_share, seed)
    stream = pairs.take(own)
    model = fit(train.examples, plan.light, steps.stage).model
    log_len = stream.examples.log_len

    def loss(forecast: Forecast) -> float:
        return pinball(log_len[WARM_UP:], forecast.quantiles[WARM_UP:], LEVELS)

    histogram = loss(baselines.running_histogram(None, stream))
    online = loss(baselines.online(model, stream))
    frozen = loss(baselines.frozen(model, stream.examples))
    return {
        "part": "unseen",
        "kind": kind,
        "name": name,
        "rows": len(stream),
        "pinball_histogram": histogram,
        "online_vs_histogram": online / histogram,
        "frozen_vs_histogram": frozen / histogram,
    }


def curve(pairs: Pairs, share: float, plan: Plan, seed: int, steps: Steps) -> dict[str, Any]:
    """The mixture trained on a share of the first fold's training groups."""
    steps.begin(f"learning curve: {share:.1%} of the training groups")
    train, test = split(pairs, 0, seed)
    part = train.share(share, seed)
    model = fit(part.examples, plan.settings, steps.stage).model
    return curve_point(share, len(part), test, model)


def curve_point(share: float, rows: int, test: Pairs, model: MoEModel) -> dict[str, Any]:
    """How good a mixture trained on so many rows is."""
    found = scores(test.examples.log_len, baselines.frozen(model, test.examples))
    return {"part": "learning curve", "share": share, **found, "rows": rows}


def bound(found: HeldOut) -> dict[str, Any]:
    """The largest R2 possible on rows whose input repeats, and what was reached there."""
    log_len = found.pairs.examples.log_len
    rows, limit = repeated_inputs(log_len, found.pairs.inputs)
    reached = {
        method: scores(log_len[rows], found.forecasts[method].take(rows))["r2_log_len"]
        for method in (MOE, ONLINE)
        if method in found.forecasts and len(rows)
    }
    return {"part": "bound", "rows": len(rows), "r2_bound": limit, "r2": reached}
