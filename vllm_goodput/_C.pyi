from typing import Any

import numpy as np
import numpy.typing as npt

def token_block_hashes(
    token_ids: Any, block_size: int, seed: int = ...
) -> npt.NDArray[np.uint64]: ...
def text_block_hashes(text: bytes, block_size: int, seed: int = ...) -> npt.NDArray[np.uint64]: ...

TEXT_BUCKETS: int
TEXT_STATS: int

def request_features(
    requests: list[tuple[list[float], tuple[str, ...]]], numbers: int, windows: int
) -> tuple[
    npt.NDArray[np.float32],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.float32],
]: ...
def sparse_times_dense(
    ends: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    dense: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    column: int,
) -> None: ...

class Forest:
    def __init__(
        self,
        feature: Any,
        threshold: Any,
        left: Any,
        nan_left: Any,
        roots: Any,
        leaves: Any,
        base: Any,
        features: int,
    ) -> None: ...
    def predict(self, rows: Any) -> npt.NDArray[np.float32]: ...

class SpeedEstimator:
    def __init__(self) -> None: ...
    def add(
        self,
        time_s: float,
        requests: float,
        prefill_tokens: float,
        steps: float,
        step_sequences: float,
    ) -> None: ...
    def overhead_s(self) -> float: ...
    def prefill_token_s(self) -> float: ...
    def decode_step_s(self, sequences: float) -> float: ...
    def decode_base_s(self) -> float: ...
    def decode_sequence_s(self) -> float: ...
    @property
    def known(self) -> bool: ...
    @property
    def samples(self) -> int: ...
