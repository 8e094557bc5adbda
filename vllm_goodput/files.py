# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put a file with `data` at `path`; readers see the old or the new one, never a part.

    A link is replaced, not followed; pass `path.resolve()` to keep it.

    Args:
        path: where; its directory exists.
        data: the content.
        mode: permissions, less the umask.

    Raises:
        OSError: it cannot be written; what was there before is as it was.
    """
    part = path.with_name(f".{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)  # one left by a crash may have other permissions
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
