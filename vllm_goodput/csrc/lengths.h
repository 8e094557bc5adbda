// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// Distribution of an output length, given by quantiles of its natural logarithm: piecewise linear
// in log length between them. Plain C++ without Python; immutable.
#pragma once

#include <vector>

namespace goodput {

class Lengths {
 public:
  // `levels` from 0 to 1 and `logs` (natural logarithm of tokens) do not fall; both of the same
  // size >= 2; no output is longer than `cap` tokens. Throws std::invalid_argument.
  Lengths(std::vector<double> levels, std::vector<double> logs, double cap);

  // The q-quantile, at least 1 token.
  double quantile(double q) const;
  // Probability that the output is at most so long.
  double cdf(double length) const;
  // The q-quantile of what is left after `generated` tokens, at least 1 token.
  double remaining(double generated, double q) const;
  // Probability that at most `more` tokens come after `generated`.
  double ends_within(double generated, double more) const {
    return ends_within(generated, more, cdf(generated));
  }
  // The same where cdf(generated) is known.
  double ends_within(double generated, double more, double passed) const;

  const std::vector<double>& logs() const { return logs_; }
  double cap() const { return cap_; }

 private:
  double log_at(double q) const;
  double level_at(double log_len) const;

  std::vector<double> levels_;
  std::vector<double> logs_;
  double cap_;
};

}  // namespace goodput
