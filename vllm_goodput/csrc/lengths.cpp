// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "lengths.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace goodput {

namespace {

constexpr double kMaxLog = 40.0;  // keeps exp() far from overflow, and any real length below
// Of the length seen so far, expected to come where no prediction reaches that far.
constexpr double kBeyond = 0.5;

}  // namespace

Lengths::Lengths(std::vector<double> levels, std::vector<double> logs, double cap)
    : levels_(std::move(levels)), logs_(std::move(logs)), cap_(std::max(1.0, cap)) {
  if (levels_.size() < 2 || levels_.size() != logs_.size()) {
    throw std::invalid_argument("levels and logs must have the same size, at least 2");
  }
  if (levels_.front() != 0.0 || levels_.back() != 1.0) {
    throw std::invalid_argument("levels must begin with 0 and end with 1");
  }
  for (std::size_t i = 1; i < levels_.size(); ++i) {
    if (!(levels_[i] >= levels_[i - 1]) || !(logs_[i] >= logs_[i - 1])) {
      throw std::invalid_argument("levels and logs must not fall");
    }
  }
}

double Lengths::quantile(double q) const {
  return std::max(1.0, std::min(cap_, std::exp(std::min(kMaxLog, log_at(q)))));
}

double Lengths::cdf(double length) const {
  if (!(length >= 1.0)) {
    return 0.0;
  }
  return length >= cap_ ? 1.0 : level_at(std::log(length));
}

double Lengths::remaining(double generated, double q) const {
  const double passed = cdf(generated);
  const double total = passed < 1.0 ? quantile(passed + q * (1.0 - passed))
                                    : std::min(cap_, generated * (1.0 + kBeyond));
  return std::max(1.0, total - generated);
}

double Lengths::ends_within(double generated, double more, double passed) const {
  if (!(more > 0.0)) {
    return 0.0;
  }
  if (passed < 1.0) {
    return (cdf(generated + more) - passed) / (1.0 - passed);
  }
  return more >= remaining(generated, 0.5) ? 1.0 : 0.0;
}

double Lengths::log_at(double q) const {
  const auto at = std::lower_bound(levels_.begin() + 1, levels_.end() - 1, q);
  const auto i = static_cast<std::size_t>(at - levels_.begin());
  const double width = levels_[i] - levels_[i - 1];
  const double part = width > 0.0 ? (q - levels_[i - 1]) / width : 0.0;
  return logs_[i - 1] + std::clamp(part, 0.0, 1.0) * (logs_[i] - logs_[i - 1]);
}

double Lengths::level_at(double log_len) const {
  if (log_len >= logs_.back()) {
    return 1.0;
  }
  if (log_len < logs_.front()) {
    return 0.0;
  }
  const auto at = std::upper_bound(logs_.begin(), logs_.end(), log_len);
  const auto i = static_cast<std::size_t>(at - logs_.begin());
  const double part = (log_len - logs_[i - 1]) / (logs_[i] - logs_[i - 1]);
  return levels_[i - 1] + part * (levels_[i] - levels_[i - 1]);
}

}  // namespace goodput
