# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The OpenAI-compatible gateway over a pool: HTTP around the pure router."""
