// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <pybind11/pybind11.h>

// Adds the prefix index and its keys to the module.
void bind_prefix(pybind11::module_& m);
