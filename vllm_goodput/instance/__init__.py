# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The HTTP side of one vLLM instance that runs the plugin: endpoints, SLO intake, metrics."""
