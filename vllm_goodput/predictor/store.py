# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Model files: one compressed .npz of plain arrays and a JSON card; nothing in it is executable."""

from __future__ import annotations

import io
import stat
import zipfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from vllm_goodput.errors import DataError
from vllm_goodput.files import replace_file
from vllm_goodput.predictor.features import DENSE_NAMES, FEATURE_VERSION, GRAM_COLUMNS, extract
from vllm_goodput.predictor.model import Gate, Heads, MoEModel
from vllm_goodput.predictor.trees import Trees
from vllm_goodput.predictor.view import RequestView

if TYPE_CHECKING:  # training needs XGBoost and SciPy; predicting does not
    from vllm_goodput.predictor.training import Trained

FORMAT = 1
MAX_BYTES = 64 * 2**20
MAX_UNPACKED_BYTES = 4 * MAX_BYTES
# Kinds of their elements, as numpy names them.
_TREE_ARRAYS = {
    "feature": "i",
    "threshold": "f",
    "left": "i",
    "nan_left": "b",
    "roots": "i",
    "leaves": "f",
    "base": "f",
}


def save(path: Path, trained: Trained) -> None:
    """Write a model file; it appears whole or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    data = dump(trained)
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, data)
    except OSError as error:
        raise DataError(f"cannot write the model {path}: {error.strerror}") from None


def dump(trained: Trained) -> bytes:
    """A model file's bytes; equal models give equal bytes."""
    model = trained.model
    meta = {
        "format": FORMAT,
        "feature_version": FEATURE_VERSION,
        "models": model.models,
        "heads": model.heads.names,
        "tasks": model.gate.tasks,
        "features": [trees.features for trees in trained.trees],
        "card": model.card,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "meta": np.frombuffer(orjson.dumps(meta), dtype=np.uint8),
        "levels": model.levels,
        "head_weights": model.heads.weights.astype(np.float16),
        "head_bias": model.heads.bias,
        "head_model_bias": model.heads.model_bias,
        "gate_heads": model.gate.heads,
        "gate_slope": model.gate.slope,
        "gate_offset": model.gate.offset,
        "gate_declared": model.gate.declared,
        "offsets": model.offsets,
    }
    for number, trees in enumerate(trained.trees):
        arrays.update({f"{number}_{name}": getattr(trees, name) for name in _TREE_ARRAYS})
    # numpy.savez_compressed would stamp the time of writing into the file.
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            entry = io.BytesIO()
            np.save(entry, np.ascontiguousarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, entry.getvalue())
    return out.getvalue()


def load(path: Path) -> MoEModel:
    """Read a model file.

    Raises:
        DataError: it is missing, corrupt, or of another feature version.
    """
    try:
        # Opening a FIFO or a device could block, and reading it never end.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise DataError(
                f"{path} is not a length model: not a file of at most {MAX_BYTES} bytes"
            )
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the model {path}: {error.strerror}") from None
    return parse(data, str(path))


@cache
def default_model() -> MoEModel:
    """The model that comes with the package.

    Raises:
        DataError: this installation lacks it.
    """
    file = resources.files("vllm_goodput.predictor") / "data" / "default.npz"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"the package's own length model is missing ({error.strerror}); name another with predictor.model"
        ) from None
    return parse(data, "the package's own length model")


def parse(data: bytes, name: str) -> MoEModel:
    """A model from a file's bytes.

    Raises:
        DataError: as `load`; `name` says which file.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            raise ValueError("too large")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        meta = orjson.loads(arrays["meta"].tobytes())
        version = meta["feature_version"], meta["format"]
    except Exception:  # noqa: BLE001 (zipfile and NumPy raise many kinds on damaged bytes)
        raise DataError(f"{name} is not a length model, or is corrupt") from None
    if version != (FEATURE_VERSION, FORMAT):
        raise DataError(
            f"{name} was trained for feature version {version[0]} (format {version[1]}), this is version"
            f" {FEATURE_VERSION} (format {FORMAT}); train it again with this version of vllm-goodput"
        )
    try:
        model = _build(arrays, meta)
        _try(model)
    except (ValueError, KeyError, TypeError, IndexError, ArithmeticError) as error:
        raise DataError(f"{name} is corrupt ({error})") from None
    return model


def _try(model: MoEModel) -> None:
    """Predict once with every expert.

    Raises:
        ValueError: that does not give lengths.
    """
    tasks = [None, *model.gate.tasks]
    with np.errstate(all="ignore"):
        features = extract([(RequestView(), None)] * len(tasks))
        model.predict(features, [""] * len(tasks), tasks)


def _build(arrays: dict[str, npt.NDArray[Any]], meta: dict[str, Any]) -> MoEModel:
    tasks, heads, models = meta["tasks"], meta["heads"], meta["models"]
    levels = arrays["levels"]
    shapes = {
        "levels": (len(levels),),
        "head_weights": (GRAM_COLUMNS, len(heads)),
        "head_bias": (len(heads),),
        "head_model_bias": (len(models), len(heads)),
        "gate_heads": (len(tasks),),
        "gate_slope": (len(tasks),),
        "gate_offset": (len(tasks),),
        "gate_declared": (len(tasks),),
        "offsets": (len(tasks) + 1, len(levels)),
    }
    for name, shape in shapes.items():
        _expect(name, arrays[name], "i" if name == "gate_heads" else "f", shape)
    if len(levels) < 2 or not 0 < levels[0] < levels[-1] < 1 or (np.diff(levels) <= 0).any():
        raise ValueError("levels must rise between 0 and 1")
    if not all(isinstance(name, str) for name in (*tasks, *heads, *models)):
        raise ValueError("names must be text")
    if len(meta["features"]) != len(tasks) + 1:
        raise ValueError("one forest per task and a general one are expected")
    if ((arrays["gate_heads"] < 0) | (arrays["gate_heads"] >= len(heads))).any():
        raise ValueError("gate_heads leads outside")
    width = len(DENSE_NAMES) + len(heads) + len(models)
    forests = []
    for number, features in enumerate(meta["features"]):
        general = number == len(tasks)
        if features != width + (0 if general else len(levels)):
            raise ValueError(f"forest {number} expects {features} features")
        values = {name: arrays[f"{number}_{name}"] for name in _TREE_ARRAYS}
        for name, kind in _TREE_ARRAYS.items():
            _expect(f"{number}_{name}", values[name], kind)
        if values["base"].shape != levels.shape:
            raise ValueError(f"forest {number} does not predict every level")
        forests.append(Trees(**values, features=features).forest())
    # Contiguous and in single precision, as the C++ side reads them.
    weights = np.ascontiguousarray(arrays["head_weights"].astype(np.float32))
    return MoEModel(
        levels,
        models,
        Heads(heads, weights, arrays["head_bias"], arrays["head_model_bias"]),
        Gate(
            tasks,
            arrays["gate_heads"],
            arrays["gate_slope"],
            arrays["gate_offset"],
            arrays["gate_declared"],
        ),
        forests,
        arrays["offsets"],
        meta["card"],
    )


def _expect(
    name: str, array: npt.NDArray[Any], kind: str, shape: tuple[int, ...] | None = None
) -> None:
    if array.dtype.kind != kind:
        raise ValueError(f"{name} holds {array.dtype}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds values that are not finite")
