// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace goodput {

// Figures about the shape of one text window; their order is that of STATS in
// predictor/features.py.
constexpr std::size_t kTextStats = 24;

// Shape of the text: sizes, character classes, punctuation, edges.
std::array<float, kTextStats> text_stats(std::string_view text);

}  // namespace goodput
