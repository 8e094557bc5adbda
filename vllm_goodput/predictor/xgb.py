# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""XGBoost, loaded with threads that sleep while they wait.

By default OpenMP's threads spin, and beside other work that makes training several times slower. OpenMP reads the
setting once, when XGBoost loads it.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import xgboost as xgb

__all__ = ["xgb"]
