// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <pybind11/pybind11.h>

// Adds sessions, corrections and the learned predictor to the module, after Lengths and the model.
void bind_corrections(pybind11::module_& m);
