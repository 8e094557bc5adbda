# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Monkey patches of vLLM, one file each, listed in registry.py. Imported as `vllm_goodput.patches`."""
