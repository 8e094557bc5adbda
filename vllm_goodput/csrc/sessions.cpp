// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "sessions.h"

#include <algorithm>
#include <cmath>

namespace goodput {

double bounded_residual(double residual) {
  return std::min(kMaxResidual, std::max(-kMaxResidual, residual));
}

void SessionLengths::add(double prompt_len, double output_len, double new_residual) {
  const double log_len = std::log(std::max(1.0, output_len));
  ++count;
  std::copy_backward(latest.begin(), latest.end() - 1, latest.end());
  latest[0] = log_len;
  total += log_len;
  square += log_len * log_len;
  high = std::max(high, log_len);
  low = std::min(low, log_len);
  context_len = prompt_len != 0.0 ? std::trunc(prompt_len + output_len) : 0.0;
  if (std::isfinite(new_residual)) {
    residual += (bounded_residual(new_residual) - residual) / static_cast<double>(count);
  }
}

double SessionLengths::deviation() const {
  if (count < 2) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto n = static_cast<double>(count);
  const double mean = total / n;
  return std::sqrt(std::max(0.0, square / n - mean * mean));
}

const SessionLengths* Sessions::find(std::string_view session) const {
  return session.empty() ? nullptr : lengths_.find(session);
}

void Sessions::add(std::string_view session, double prompt_len, double output_len,
                   double residual) {
  if (!session.empty()) {
    lengths_.touch(session).add(prompt_len, output_len, residual);
  }
}

}  // namespace goodput
