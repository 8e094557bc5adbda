# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`python -m vllm_goodput.cli`."""

import sys

from vllm_goodput.cli import main

sys.exit(main())
