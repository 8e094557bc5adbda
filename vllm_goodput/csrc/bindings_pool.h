// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <pybind11/pybind11.h>

// Adds length distributions and the router's pool to the module.
void bind_pool(pybind11::module_& m);
