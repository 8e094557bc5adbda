// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <pybind11/pybind11.h>

// Adds the predictor's functions and classes to the module.
void bind_predictor(pybind11::module_& m);
