# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput serve MODEL ...`: the same as `vllm serve MODEL --plugin goodput ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vllm_goodput import compat
from vllm_goodput.plugin import NAME


def run(args: Sequence[str]) -> int:
    """Hand the arguments to vLLM's own command with the plugin on."""
    compat.check_vllm()
    has_plugin = any(a == "--plugin" or a.startswith("--plugin=") for a in args)
    sys.argv = ["vllm", "serve", *args, *([] if has_plugin else ["--plugin", NAME])]
    from vllm.entrypoints.cli.main import main

    main()
    return 0
