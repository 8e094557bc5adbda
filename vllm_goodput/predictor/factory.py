# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The length predictor that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from vllm_goodput.config import RouterConfig
from vllm_goodput.errors import DataError
from vllm_goodput.predictor.base import LengthPredictor
from vllm_goodput.predictor.constant import ConstantLength, MaxTokensLength
from vllm_goodput.predictor.histogram import TaskHistogram
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.model import MoEModel
from vllm_goodput.predictor.store import default_model, load


def make_predictor(config: RouterConfig) -> LengthPredictor:
    """A new predictor of the configured kind.

    Raises:
        DataError: its model cannot be loaded.
    """
    match config.predictor.kind:
        case "learned":
            return MoEPredictor(
                load_model(config.predictor.model),
                use_max_tokens=config.use_max_tokens,
                keep_features=config.predictor.log is not None,
            )
        case "histogram":
            return make_histogram(config)
        case "constant":
            return ConstantLength(config.initial_output_len, config.use_max_tokens)
        case "max_tokens":
            return MaxTokensLength(config.initial_output_len)


def make_histogram(config: RouterConfig) -> TaskHistogram:
    """The predictor of kind `histogram`."""
    return TaskHistogram(config.initial_output_len, use_max_tokens=config.use_max_tokens)


def load_model(path: str | None) -> MoEModel:
    """The model in this file; the package's own for None.

    Raises:
        DataError: it cannot be loaded.
    """
    if path is None:
        return default_model()
    try:
        return load(Path(path).absolute())
    except DataError as error:
        raise DataError(
            f"router.predictor.model: {error}; make one with `vllm-goodput train`, or leave the setting out to use the"
            " package's own"
        ) from None
