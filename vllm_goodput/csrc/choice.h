// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// The choice of the policy `goodput` among a pool's candidates. Plain C++ without Python.
#pragma once

#include <vector>

#include "lengths.h"
#include "pool.h"

namespace goodput {

// Parameters; see GoodputChoice.
struct ChoiceSettings {
  double stretch;          // of predicted times
  double min_price;        // asked on an idle instance
  double occupancy_price;  // added at full occupancy, for a request of mean size
  double size_exponent;
  double tolerance;  // gains so close to the best count as equal
  double urgency_weight;
  int max_unmeasured;  // requests that an instance never measured may have
};

// Weighs, for every candidate, what a request is expected to gain there against what it costs:
//
//   gain = chance - harm - price
//
// chance: that the request meets every objective; harm: booked requests expected to miss theirs
// because of it; price: what the capacity that it takes is expected to be worth to requests still
// to come, which grows with the instance's occupancy and with the request's size relative to the
// mean. Among gains close to the best, the least occupied instance.
class GoodputChoice {
 public:
  explicit GoodputChoice(ChoiceSettings settings) : settings_(settings) {}

  // Index of the chosen one of the pool's candidates, which were evaluated for this request; -1 if
  // nothing is gained anywhere. With `learn` the mean sizes take it into account.
  int choose(Pool& pool, const Demand& demand, const Lengths& lengths, double now_s, bool learn);

  // Gains of the candidates as far as the last choice looked at them; NaN elsewhere.
  const std::vector<double>& gains() const { return gains_; }
  // What the candidates would be worth if they did no harm.
  const std::vector<double>& worths() const { return worth_; }

 private:
  double relative_size(const Candidates& c, std::size_t k, bool learn);
  int pick(Pool& pool, const Demand& demand, double now_s);
  int pick_best(Pool& pool, const Demand& demand, double now_s);
  void gather(double above);
  double gain(Pool& pool, const Demand& demand, int k, double now_s);

  ChoiceSettings settings_;
  std::vector<double> mean_size_s_;  // by slot; NaN: none yet
  std::vector<double> worth_, gains_, score_;
  std::vector<int> order_;
  int looks_ = 0;  // left
};

}  // namespace goodput
