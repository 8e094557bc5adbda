# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The length predictors that are compared: what is simpler than the mixture of experts, and its own parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from benchmarks.predictor_data import Pairs
from benchmarks.predictor_scores import MEDIAN, Floats, Forecast
from vllm_goodput.predictor import LengthDistribution, TaskHistogram
from vllm_goodput.predictor.dataset import Examples
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.model import MoEModel
from vllm_goodput.predictor.training import LEVELS, TrainSettings
from vllm_goodput.predictor.xgb import xgb
from vllm_goodput.router.types import RequestInfo

TEXT_COLUMNS = 512

Predict = Callable[[RequestInfo], LengthDistribution]
Observe = Callable[[RequestInfo, int, LengthDistribution], None]


def constant(train: Examples, test: Examples) -> Forecast:
    """The same for every request."""
    return _empirical(train.log_len, len(test))


def oracle(test: Examples) -> Forecast:
    """The true length."""
    return Forecast.of(np.repeat(test.log_len[:, None], len(LEVELS), axis=1), test.log_len)


def task_mean(train: Examples, test: Examples) -> Forecast:
    """Per task: mean length, mean log length and quantiles of the training rows; of all rows for an unknown task."""
    out = constant(train, test)
    out.tokens[:] = train.output_len.mean()
    for task in np.unique(test.task):
        own, rows = train.task == task, np.flatnonzero(test.task == task)
        if own.any():
            part = _empirical(train.log_len[own], len(rows))
            out.quantiles[rows] = part.quantiles
            out.mean[rows] = part.mean
            out.tokens[rows] = train.output_len[own].mean()
    return out


def task_median(forecast: Forecast) -> Forecast:
    """`task_mean` with the median as the number to say, which is better where the error's size counts."""
    return replace(forecast, tokens=np.exp(forecast.quantiles[:, MEDIAN]))


def _empirical(log_len: Floats, rows: int) -> Forecast:
    quantiles = np.tile(np.quantile(log_len, LEVELS), (rows, 1))
    return Forecast.of(quantiles, np.full(rows, log_len.mean()))


def prequential(pairs: Pairs, predict: Predict, observe: Observe) -> Forecast:
    """Each request is predicted before its length is learnt, in the order given."""
    quantiles = np.empty((len(pairs), len(LEVELS)))
    levels = LEVELS.tolist()
    for row, info in enumerate(pairs.infos):
        predicted = predict(info)
        quantiles[row] = [predicted.quantile(level) for level in levels]
        observe(info, int(pairs.examples.output_len[row]), predicted)
    return Forecast.of(np.log(quantiles))


def running_histogram(train: Pairs | None, test: Pairs) -> Forecast:
    """The histogram per task, which has seen the training rows if any."""
    histogram = TaskHistogram()
    if train is not None:
        for info, length in zip(train.infos, train.examples.output_len, strict=True):
            histogram.observe(info, int(length))
    return prequential(test, histogram.predict, histogram.observe)


def online(model: MoEModel, test: Pairs) -> Forecast:
    """The mixture of experts as it runs in the gateway."""
    predictor = MoEPredictor(model)
    return prequential(test, predictor.predict, predictor.observe)


def frozen(model: MoEModel, test: Examples, declared: bool = True) -> Forecast:
    """The mixture of experts alone, with or without the caller's task type."""
    tasks = [str(task) if declared else None for task in test.task]
    quantiles, _ = model.predict(test.features, [str(m) for m in test.model], tasks)
    return Forecast.of(quantiles)


def general_expert(model: MoEModel, test: Examples) -> Forecast:
    """What the mixture would say if its gate trusted no task's expert."""
    nothing = np.zeros_like(model.gate.declared)
    return frozen(replace(model, gate=replace(model.gate, declared=nothing)), test)


def global_xgboost(train: Examples, test: Examples, settings: TrainSettings) -> Forecast:
    """One XGBoost over everything but the task, with as many and as deep trees as the general expert."""
    models = np.unique(train.model)
    matrix = xgb.QuantileDMatrix(
        _flat(train, models), train.log_len, max_bin=64, nthread=settings.threads or None
    )
    rows = _flat(test, models)
    common: dict[str, Any] = {
        "tree_method": "hist",
        "max_bin": 64,
        "subsample": 0.8,
        "colsample_bytree": 0.5,
        "max_depth": settings.depth,
        "eta": settings.learning_rate,
        "min_child_weight": settings.min_rows,
        "seed": settings.seed,
        "nthread": settings.threads,
    }
    levels = {
        "objective": "reg:quantileerror",
        "quantile_alpha": LEVELS,
        "multi_strategy": "multi_output_tree",
    }
    quantiles = xgb.train({**common, **levels}, matrix, settings.rounds).inplace_predict(rows)
    mean = xgb.train({**common, "objective": "reg:squarederror"}, matrix, settings.rounds)
    return Forecast.of(
        np.sort(quantiles, axis=1), np.asarray(mean.inplace_predict(rows), dtype=np.float64)
    )


def _flat(data: Examples, models: npt.NDArray[np.str_]) -> npt.NDArray[np.float32]:
    """Dense features, hashed text and one column per model."""
    features = data.features
    # Equal columns of a row add up, as in any hashing.
    text = sp.csr_matrix(
        (features.weights, features.indices % TEXT_COLUMNS, features.ends),
        shape=(len(data), TEXT_COLUMNS),
    )
    model = data.model[:, None] == models
    return np.concatenate([features.dense, text.toarray(), model], axis=1, dtype=np.float32)
