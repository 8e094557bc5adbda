# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Benchmarks: one module per claim, run as `python -m benchmarks.NAME [--quick] [--json PATH|-]`."""
