// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

namespace goodput {

inline std::array<float, 256> make_small_logs() {
  std::array<float, 256> made{};
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = std::log1p(static_cast<float>(i));
  }
  return made;
}

inline const std::array<float, 256> kSmallLogs = make_small_logs();

// log(1 + count) in single precision. Most counts of a text are small, and taking logarithms would
// be most of the work on them.
inline float log1p_of(std::size_t count) {
  return count < kSmallLogs.size() ? kSmallLogs[count] : std::log1p(static_cast<float>(count));
}

}  // namespace goodput
