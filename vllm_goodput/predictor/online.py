# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What finished requests correct at once: location, histogram and calibration per task and model.

The model's quantiles are shifted by the recent mean residual of their key (task, model) and session, then averaged
with the quantiles of the key's running histogram. The weights follow the gradient of the loss (exponentiated gradient;
Kivinen and Warmuth, 1997), so that a kind of request on which the model is wrong soon gets what a histogram would say.
Last, each level is moved until the stated fraction of recent lengths lies below it (adaptive conformal inference;
Gibbs and Candès, 2021), which holds however lengths drift.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from vllm_goodput.predictor.histogram import BUCKETS, EDGES, PER_OCTAVE
from vllm_goodput.predictor.sessions import bounded

# Old residuals and losses of a key fade by this factor per new one (it looks back at about fifty), and old lengths in
# its histogram by this one (two hundred).
DECAY = 0.98
HISTOGRAM_DECAY = 0.995
# So many observations count as much as the model's own word on where the lengths of a key lie, or of a session; by
# whether the model was trained on requests of the kind.
SHIFT_PRIOR = {True: 60.0, False: 12.0}
SESSION_PRIOR = {True: 60.0, False: 10.0}
# Log odds in favour of the model before a key has been observed, by whether the model was trained on its kind.
ODDS = {True: 4.0, False: 1.0}
MAX_ODDS = 8.0
# How fast the odds follow the gradient of the loss.
ODDS_RATE = 0.25
# Step of the conformal correction, natural log of tokens per miss, and its bound.
CONFORMAL_STEP = 0.01
MAX_CONFORMAL = 2.0
# Kinds of requests that the model was not trained on begin with a wider distribution (standard deviation added, natural
# log of tokens), by how much of task and model is unknown; so many observations halve it.
DOUBT = (0.0, 0.4, 0.8)
DOUBT_OBSERVATIONS = 3.0

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
_LOG_EDGES = np.log(EDGES)
# Width of a bucket, in log length.
_BUCKET = math.log(2.0) / PER_OCTAVE


class KeyState:
    """What is known of one (task, model) from its finished requests.

    Args:
        levels: quantile levels.
        known: whether the model was trained on requests of this kind.
    """

    __slots__ = (
        "_levels",
        "_losses",
        "_residual",
        "_shift_prior",
        "conformal",
        "count",
        "counts",
        "histogram",
        "odds",
    )

    def __init__(self, levels: Vector, known: bool) -> None:
        self._levels = levels
        self._shift_prior = SHIFT_PRIOR[known]
        self._losses = np.zeros(2)  # fading sum and count
        self.count = 0.0
        self._residual = 0.0  # fading mean
        self.odds = ODDS[known]
        self.counts = np.zeros(BUCKETS)
        self.histogram = np.zeros(len(levels))  # its quantiles, log; of no use before `count` is 1
        self.conformal = np.zeros(len(levels))

    @property
    def shift(self) -> float:
        """Correction of where this key's lengths lie, natural log of tokens."""
        return self._residual * self.count / (self.count + self._shift_prior)

    @property
    def model_share(self) -> float:
        """Weight of the model beside the histogram, in (0, 1)."""
        return 1.0 / (1.0 + math.exp(-self.odds))

    def learn(self, raw: Vector, final: Vector, log_len: float, censored: bool) -> None:
        """A request finished.

        Args:
            raw: the model's log quantiles for it.
            final: what was predicted after all corrections.
            log_len: of its output.
            censored: whether it was cut off at a limit, so that it would have been at least so long.
        """
        if censored:
            # All that is known is a lower bound; what was expected stands in if it lies above.
            log_len = max(log_len, median(final, self._levels))
        else:
            self._weigh(raw, log_len)
            below = log_len <= final
            self.conformal += CONFORMAL_STEP * np.where(below, self._levels - 1.0, self._levels)
            np.clip(self.conformal, -MAX_CONFORMAL, MAX_CONFORMAL, out=self.conformal)
        residual = bounded(log_len - median(raw, self._levels))
        self.count = DECAY * self.count + 1.0
        self._residual += (residual - self._residual) / self.count
        self.counts *= HISTOGRAM_DECAY
        self.counts[_bucket(log_len)] += 1.0
        self.histogram = self._histogram_quantiles(raw)

    def _weigh(self, raw: Vector, log_len: float) -> None:
        """One step down the gradient of the blend's pinball loss, in units of its recent mean."""
        if not self.count:
            return
        model = raw + self.shift
        share = self.model_share
        blend = share * model + (1.0 - share) * self.histogram
        self._losses = DECAY * self._losses + (_loss(blend, log_len, self._levels), 1.0)
        mean = self._losses[0] / self._losses[1]
        slope = np.where(log_len > blend, -self._levels, 1.0 - self._levels)
        if mean > 0.0:
            self.odds -= ODDS_RATE * float(np.mean(slope * (model - self.histogram))) / mean
            self.odds = min(MAX_ODDS, max(-MAX_ODDS, self.odds))

    def _histogram_quantiles(self, raw: Vector) -> Vector:
        """Quantiles of the counts, with one observation's worth of the latest model quantiles mixed in."""
        cumulative = np.cumsum(self.counts)
        at = np.searchsorted(cumulative, self._levels * cumulative[-1])
        at = np.minimum(at, BUCKETS - 1)
        within = (cumulative[at] - self._levels * cumulative[-1]) / np.maximum(
            1e-12, self.counts[at]
        )
        own = _LOG_EDGES[at] - _BUCKET * np.clip(within, 0.0, 1.0)
        trust = self.count / (self.count + 2.0)
        return np.asarray(trust * own + (1.0 - trust) * (raw + self.shift))


class Corrections:
    """Corrections by (task, model), the least recently used forgotten first.

    Args:
        levels: quantile levels.
        max_keys: how many are remembered.
    """

    def __init__(self, levels: Vector, max_keys: int = 2000) -> None:
        self._levels = levels
        self._max = max_keys
        self._keys: OrderedDict[tuple[str, str], KeyState] = OrderedDict()
        self._normal = np.array([NormalDist().inv_cdf(level) for level in levels])

    def apply(
        self,
        raw: Matrix,
        keys: Sequence[tuple[str, str]],
        unknown: Sequence[int],
        session_shifts: Sequence[float],
    ) -> Matrix:
        """Corrected log quantiles.

        Args:
            raw: [n, levels], the model's log quantiles of n requests.
            keys: of the requests.
            unknown: how many of the key's task and model are unknown to the model: 0, 1 or 2.
            session_shifts: by their sessions.

        Returns:
            [n, levels], non-decreasing along the levels.
        """
        states = [self._keys.get(key) for key in keys]
        shifts = [
            session + (state.shift if state else 0.0)
            for session, state in zip(session_shifts, states, strict=True)
        ]
        out: Matrix = raw + np.array(shifts)[:, None]
        seen = [row for row, state in enumerate(states) if state]
        if seen:
            # A state has been observed at least once, so it has a histogram.
            found = [state for state in states if state]
            share = np.array([state.model_share for state in found])[:, None]
            histogram = np.array([state.histogram for state in found])
            conformal = np.array([state.conformal for state in found])
            out[seen] = share * out[seen] + (1.0 - share) * histogram + conformal
        strange = [row for row, count in enumerate(unknown) if count]
        if strange:
            counts = [state.count if (state := states[row]) else 0.0 for row in strange]
            fading = 1.0 / (1.0 + np.array(counts) / DOUBT_OBSERVATIONS)
            fading *= np.array([DOUBT[unknown[row]] for row in strange])
            out[strange] += fading[:, None] * self._normal
        out.sort(axis=1)
        return out

    def of(self, key: tuple[str, str], known: bool) -> KeyState:
        """State of a key, made if need be."""
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = KeyState(self._levels, known)
            if len(self._keys) > self._max:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(key)
        return state

    def __len__(self) -> int:
        return len(self._keys)


def session_shift(residual: float, count: int, known: bool) -> float:
    """Correction by a session's mean residual over `count` finished turns."""
    return residual * count / (count + SESSION_PRIOR[known])


def median(quantiles: Sequence[float] | Vector, levels: Vector) -> float:
    """The quantile at one half."""
    return float(np.interp(0.5, levels, quantiles))


def _loss(quantiles: Vector, log_len: float, levels: Vector) -> float:
    error = log_len - quantiles
    return float(np.maximum(levels * error, (levels - 1.0) * error).mean())


def _bucket(log_len: float) -> int:
    return min(BUCKETS - 1, max(0, math.ceil(log_len / math.log(2.0) * PER_OCTAVE) - 1))
