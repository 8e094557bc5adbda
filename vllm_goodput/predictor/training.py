# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Trains the mixture of experts; the same examples, settings and seed give the same model.

Every stage is fed with what the stage before it predicts for rows that it was not trained on (folds that keep groups
whole), so that no stage learns to trust a score that has seen the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.sparse.linalg import lsqr

from vllm_goodput.errors import DataError
from vllm_goodput.predictor.dataset import Examples
from vllm_goodput.predictor.features import GRAM_COLUMNS, NUMBERS, WINDOWS
from vllm_goodput.predictor.metrics import pinball
from vllm_goodput.predictor.model import F32, Gate, Heads, MoEModel, assemble
from vllm_goodput.predictor.trees import Trees, from_booster
from vllm_goodput.predictor.xgb import xgb

LEVELS = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
# Fewer rows tell too little of a task. Its expert has splits from some hundred rows on; until then it is the task's own
# quantiles, of which it takes as much as helps held-out rows.
MIN_TASK_ROWS = 20
MAX_TASKS = 50  # the largest; labels are chosen by clients, and every expert costs time
MIN_MODEL_ROWS = 20
MODEL_SCALE = 3.0  # of the model's indicator beside n-grams of unit length: a weaker penalty
SHRINK_ROWS = 200.0  # a task's calibration counts as much as that of all tasks from so many rows on

Progress = Callable[[str], None]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Args:
        seed: of folds and of the trees' row and column samples.
        folds: for out-of-fold scores and calibration.
        rounds, depth, learning_rate, min_rows: of the general expert's trees; least rows in a leaf.
        expert_rounds, expert_depth, expert_learning_rate, expert_min_rows: of the other experts'.
        length_penalty, task_penalty: ridge penalties of the heads that predict lengths and task types.
        masked: fraction of rows that the trees see a second time without model and session, as a stranger's request.
        threads: 0 for all cores.
    """

    seed: int = 0
    folds: int = 4
    rounds: int = 200
    depth: int = 6
    learning_rate: float = 0.1
    min_rows: int = 15
    expert_rounds: int = 120
    expert_depth: int = 4
    expert_learning_rate: float = 0.05
    expert_min_rows: int = 40
    length_penalty: float = 30.0
    task_penalty: float = 3.0
    masked: float = 0.25
    threads: int = 0


@dataclass(frozen=True)
class Trained:
    """A model with what is needed to save and to judge it.

    Args:
        model: ready to predict.
        trees: of its experts, in their order.
        held_out: float64 [n, levels], quantiles of each training row's log length by experts that have not seen the
            row, its task taken as declared.
    """

    model: MoEModel
    trees: list[Trees]
    held_out: Floats


def fit(
    data: Examples,
    settings: TrainSettings = TrainSettings(),
    progress: Progress = lambda stage: None,
) -> Trained:
    """Train on all examples.

    Raises:
        DataError: there are too few.
    """
    if len(np.unique(data.group)) < 2 * settings.folds:
        raise DataError(
            f"{len(data)} examples of {len(np.unique(data.group))} first prompts are too few to train on;"
            f" at least {2 * settings.folds} first prompts are needed"
        )
    fold = folds_of(data.group, settings.folds, settings.seed)
    tasks = expert_tasks(data, fold)
    names, counts = np.unique(data.model, return_counts=True)
    models = [str(n) for n, c in zip(names, counts, strict=True) if c >= MIN_MODEL_ROWS and n]
    index = {name: i for i, name in enumerate(models)}
    known = [index.get(str(name), -1) for name in data.model]
    progress("text heads")
    heads, scores = _fit_heads(data, tasks, models, np.array(known), fold, settings)
    claims = _fit_gate(data, tasks, heads.names, scores)
    rows = assemble(data.features.dense, scores, known, len(models))
    trainer = _Trainer(rows, data, settings, rows.shape[1] - len(models))
    progress("general expert")
    everything = np.ones(len(data), dtype=bool)
    general, held_out = trainer.train(everything, fold, trainer.general)
    trainer.stack(held_out.astype(np.float32))
    experts, predicted = [], []
    for task in tasks:
        progress(f"expert {task}")
        trees, quantiles = trainer.train(data.task == task, fold, trainer.expert)
        experts.append(trees)
        predicted.append(quantiles)
    experts.append(general)
    predicted.append(held_out)
    progress("calibration")
    declared, offsets, blended = _blend(data, tasks, predicted)
    gate = Gate(tasks, claims[0], claims[1], claims[2], declared)
    forests = [trees.forest() for trees in experts]
    model = MoEModel(LEVELS, models, heads, gate, forests, offsets, {"settings": asdict(settings)})
    return Trained(model, experts, blended)


def expert_tasks(data: Examples, fold: npt.NDArray[np.int64]) -> list[str]:
    """Tasks with rows enough for an expert, in more folds than one so that some can be held out; sorted by name."""
    names, counts = np.unique(data.task, return_counts=True)
    largest = sorted(zip(-counts, names, strict=True))
    enough = [
        str(name)
        for count, name in largest
        if name and -count >= MIN_TASK_ROWS and len(np.unique(fold[data.task == name])) > 1
    ]
    return sorted(enough[:MAX_TASKS])


def folds_of(group: npt.NDArray[np.int64], folds: int, seed: int) -> npt.NDArray[np.int64]:
    """int [n]: a seeded fold number per row, equal within a group."""
    names, index = np.unique(group, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(names)) % folds)[index]


def _fit_heads(
    data: Examples,
    tasks: list[str],
    models: list[str],
    known: npt.NDArray[Any],
    fold: npt.NDArray[np.int64],
    settings: TrainSettings,
) -> tuple[Heads, F32]:
    """The heads, and the out-of-fold scores of all rows."""
    features = data.features
    grams = sp.csr_matrix(
        (features.weights, features.indices, features.ends), shape=(len(data), GRAM_COLUMNS)
    )
    seen = np.flatnonzero(known >= 0)
    indicator = sp.csr_matrix(
        (np.full(len(seen), MODEL_SCALE, dtype=np.float32), (seen, known[seen])),
        shape=(len(data), len(models)),
    )
    everything = sp.hstack([grams, indicator]).tocsr()
    log_len = data.log_len
    width = GRAM_COLUMNS // len(WINDOWS)
    plans: list[tuple[str, npt.NDArray[np.intp], Floats, npt.NDArray[np.bool_], float]] = []
    all_rows = np.ones(len(data), dtype=bool)
    all_columns = np.arange(everything.shape[1])
    for number, name in enumerate(WINDOWS):
        columns = np.concatenate(
            [np.arange(number * width, (number + 1) * width), all_columns[GRAM_COLUMNS:]]
        )
        plans.append((f"length by {name}", columns, log_len, all_rows, settings.length_penalty))
    plans.append(("length", all_columns, log_len, all_rows, settings.length_penalty))
    for task in tasks:
        own = data.task == task
        plans.append((f"length if {task}", all_columns, log_len, own, settings.length_penalty / 2))
    for task in tasks:
        target = (data.task == task).astype(np.float64)
        plans.append(
            (f"is {task}", all_columns[:GRAM_COLUMNS], target, all_rows, settings.task_penalty)
        )
    weights = np.zeros((everything.shape[1], len(plans)), dtype=np.float32)
    bias = np.zeros(len(plans), dtype=np.float32)
    scores = np.zeros((len(data), len(plans)), dtype=np.float32)
    for head, (_, columns, target, own, penalty) in enumerate(plans):
        matrix = everything[:, columns]
        # The mean over the folds, not a fit on all rows: the penalty would shrink that one less, and the trees, who
        # learn from held-out scores, would meet larger ones than they know.
        for part in range(settings.folds):
            slope, start = _ridge(
                matrix[own & (fold != part)], target[own & (fold != part)], penalty
            )
            scores[fold == part, head] = matrix[fold == part] @ slope + start
            weights[columns, head] += slope / settings.folds
            bias[head] += start / settings.folds
    # What is saved in half precision is also used so.
    weights = weights.astype(np.float16).astype(np.float32)
    return Heads(
        [plan[0] for plan in plans],
        np.ascontiguousarray(weights[:GRAM_COLUMNS]),
        bias,
        np.ascontiguousarray(weights[GRAM_COLUMNS:] * MODEL_SCALE),
    ), scores


def _ridge(matrix: sp.csr_matrix, target: Floats, penalty: float) -> tuple[Floats, float]:
    if not len(target):
        return np.zeros(matrix.shape[1]), 0.0
    mean = float(target.mean())
    return lsqr(matrix, target - mean, damp=np.sqrt(penalty), iter_lim=40)[0], mean


def _fit_gate(
    data: Examples, tasks: list[str], heads: list[str], scores: F32
) -> tuple[npt.NDArray[np.int64], F32, F32]:
    """Positions of the task heads, and the logistic curve that makes each score a probability."""
    at = np.array([heads.index(f"is {task}") for task in tasks], dtype=np.int64)
    slope = np.zeros(len(tasks), dtype=np.float32)
    offset = np.zeros(len(tasks), dtype=np.float32)
    for number, task in enumerate(tasks):
        score = scores[:, at[number]].astype(np.float64)
        target = (data.task == task).astype(np.float64)

        def loss(x: Floats, score: Floats = score, target: Floats = target) -> float:
            z = x[0] * score + x[1]
            return float(np.mean(np.logaddexp(0.0, z) - target * z)) + 1e-5 * float(x @ x)

        slope[number], offset[number] = minimize(loss, np.array([5.0, -2.5])).x
    return at, slope, offset


class _Trainer:
    """Trains boosters on the same rows."""

    def __init__(
        self,
        rows: F32,
        data: Examples,
        settings: TrainSettings,
        model_column: int,
    ) -> None:
        s = settings
        self._rows = rows
        self._masked = _masked(rows, model_column)
        self._log_len = data.log_len.astype(np.float32)
        self._twice = np.random.default_rng(s.seed).random(len(data)) < s.masked
        self._folds = s.folds
        self._params = {
            "objective": "reg:quantileerror",
            "quantile_alpha": LEVELS,
            "multi_strategy": "multi_output_tree",
            "tree_method": "hist",
            "max_bin": 64,
            "subsample": 0.8,
            "colsample_bytree": 0.5,
            "seed": s.seed,
            "nthread": s.threads,
        }
        self.general = (s.rounds, s.depth, s.learning_rate, s.min_rows)
        self.expert = (s.expert_rounds, s.expert_depth, s.expert_learning_rate, s.expert_min_rows)

    def stack(self, quantiles: F32) -> None:
        """Let the trees to come see the general expert's quantiles as well."""
        self._rows = np.concatenate([self._rows, quantiles], axis=1)
        self._masked = np.concatenate([self._masked, quantiles], axis=1)

    def train(
        self,
        own: npt.NDArray[np.bool_],
        fold: npt.NDArray[np.int64],
        shape: tuple[int, int, float, int],
    ) -> tuple[Trees, Floats]:
        """A forest of the rows `own`, and what forests that have not seen a row's fold say of it, [n, levels]."""
        held_out = np.full((len(own), len(LEVELS)), np.nan)
        for part in range(self._folds):
            test = np.flatnonzero(own & (fold == part))
            train = np.flatnonzero(own & (fold != part))
            if len(train) and len(test):
                forest = self._fit(train, *shape).forest()
                held_out[test] = forest.predict(self._rows[test])
        return self._fit(np.flatnonzero(own), *shape), held_out

    def _fit(
        self, index: Rows, rounds: int, depth: int, learning_rate: float, min_rows: int
    ) -> Trees:
        again = index[self._twice[index]]
        matrix = xgb.QuantileDMatrix(
            np.concatenate([self._rows[index], self._masked[again]]),
            np.concatenate([self._log_len[index], self._log_len[again]]),
            max_bin=64,
            nthread=self._params["nthread"] or None,
        )
        shape = {"max_depth": depth, "eta": learning_rate, "min_child_weight": min_rows}
        return from_booster(xgb.train({**self._params, **shape}, matrix, rounds))


def _masked(rows: F32, width: int) -> F32:
    """The rows without what tells the model; what is known of the session goes too."""
    out = rows.copy()
    out[:, width:] = 0.0
    begin, end = NUMBERS.index("known lengths"), len(NUMBERS)
    out[:, begin:end] = np.nan
    out[:, begin] = 0.0
    return out


def _blend(data: Examples, tasks: list[str], held_out: list[Floats]) -> tuple[F32, F32, Floats]:
    """Weight of each task's expert beside the general one, the experts' calibration, and the blend itself."""
    log_len = data.log_len
    general = held_out[-1]
    offsets = np.zeros((len(tasks) + 1, len(LEVELS)))
    offsets[-1] = _calibration(log_len, general)
    blended = general + offsets[-1]
    declared = np.zeros(len(tasks), dtype=np.float32)
    for number, task in enumerate(tasks):
        own = np.flatnonzero(data.task == task)
        usable = own[~np.isnan(held_out[number][own, 0])]
        trial = {
            share: share * held_out[number][usable] + (1 - share) * blended[usable]
            for share in (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)
        }
        share = min(trial, key=lambda s: pinball(log_len[usable], trial[s], LEVELS))
        # The general expert has a say in this task's calibration too, all the more where rows are few.
        trust = len(usable) / (len(usable) + SHRINK_ROWS)
        shift = trust * _calibration(log_len[usable], trial[share])
        shift += (1 - trust) * share * offsets[-1]
        declared[number] = share
        offsets[number] = shift / share
        blended[usable] = trial[share] + shift
    return declared, offsets.astype(np.float32), np.sort(blended, axis=1)


def _calibration(log_len: Floats, quantiles: Floats) -> Floats:
    """Shift of each level's quantile after which the stated fraction lies below it."""
    return np.array(
        [
            np.quantile(log_len - quantiles[:, i], level, method="higher")
            for i, level in enumerate(LEVELS)
        ]
    )
