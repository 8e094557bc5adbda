// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "recent_map.h"

namespace goodput {

// Largest residual of a log length that enters a running mean: a single outlier moves it no more.
constexpr double kMaxResidual = 3.0;

double bounded_residual(double residual);

// Running figures of one session's output lengths, in natural logarithms of tokens.
struct SessionLengths {
  static constexpr std::size_t kLatest = 4;

  // A turn finished. `prompt_len` 0: not known. `residual`: log length less what was predicted.
  void add(double prompt_len, double output_len, double residual);
  // Standard deviation of the log lengths; NaN for fewer than two.
  double deviation() const;

  int64_t count = 0;                        // finished turns
  std::array<double, kLatest> latest = {};  // the last log lengths, newest first
  double total = 0.0;
  double square = 0.0;
  double high = -std::numeric_limits<double>::infinity();
  double low = std::numeric_limits<double>::infinity();
  double context_len = 0.0;  // prompt and output of the last turn, tokens; 0 if not known
  double residual = 0.0;     // running mean
};

// The most recently active sessions.
class Sessions {
 public:
  explicit Sessions(std::size_t max_sessions) : lengths_(max_sessions) {}

  // Null for an unknown or unnamed session; valid until the next add().
  const SessionLengths* find(std::string_view session) const;
  void add(std::string_view session, double prompt_len, double output_len, double residual);
  std::size_t size() const { return lengths_.size(); }

 private:
  RecentMap<SessionLengths> lengths_;
};

}  // namespace goodput
