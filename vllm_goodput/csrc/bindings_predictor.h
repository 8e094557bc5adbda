// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <pybind11/pybind11.h>

#include "request_features.h"

// (dense [n, width], ends, indices, weights) as NumPy arrays of their own.
pybind11::tuple arrays_of(const goodput::FeatureRows& rows);

// Adds the features, the forest and the model to the module.
void bind_predictor(pybind11::module_& m);
