// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace goodput {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// Weight of the past in the mean size, per request.
constexpr double kDecay = 0.98;
constexpr double kMinSizeS = 1e-9;
// So many candidates are looked at closely; in a large pool that is near enough to the best.
constexpr int kLooks = 4;

}  // namespace

// The share of the instance's time that the request takes, relative to the mean of all requests.
double GoodputChoice::relative_size(const Candidates& c, std::size_t k, bool learn) {
  const auto slot = static_cast<std::size_t>(c.slot[k]);
  if (slot >= mean_size_s_.size()) {
    mean_size_s_.resize(slot + 1, kNaN);
  }
  const double size = c.prefill_s[k] + c.decode_s[k] / std::max(1.0, c.limit[k] / 2.0);
  const double before = std::isnan(mean_size_s_[slot]) ? size : mean_size_s_[slot];
  const double mean = kDecay * before + (1.0 - kDecay) * size;
  if (learn) {
    mean_size_s_[slot] = mean;
  }
  return size / std::max(kMinSizeS, mean);
}

int GoodputChoice::choose(Pool& pool, const Demand& demand, const Lengths& lengths, double now_s,
                          bool learn) {
  pool.chances(demand, lengths, settings_.stretch, now_s);
  const Candidates& c = pool.candidates();
  const std::size_t count = c.size();
  const double left = demand.deadline_s - now_s;
  worth_.resize(count);
  score_.resize(count);
  gains_.assign(count, kNaN);
  for (std::size_t k = 0; k < count; ++k) {
    const double occupancy = static_cast<double>(c.in_flight[k]) / c.limit[k];
    const double total = c.queue_s[k] + c.prefill_s[k] + c.decode_s[k];
    score_[k] = occupancy + (left < kInf ? settings_.urgency_weight * total / left : 0.0);
    if (!c.known[k]) {
      worth_[k] = c.in_flight[k] < settings_.max_unmeasured ? 1.0 : -1.0;
      continue;
    }
    const double size = relative_size(c, k, learn);
    worth_[k] = c.chance[k] - settings_.min_price;
    if (worth_[k] > 0.0) {
      worth_[k] -= settings_.occupancy_price * std::min(1.0, occupancy) *
                   std::pow(size, settings_.size_exponent);
    }
  }
  return pick(pool, demand, now_s);
}

// Harm is dear to find and never negative, so what a candidate is worth without it bounds its gain.
int GoodputChoice::pick(Pool& pool, const Demand& demand, double now_s) {
  const auto top = std::max_element(worth_.begin(), worth_.end());
  if (top == worth_.end() || *top <= 0.0) {
    return -1;
  }
  // Mostly one of those that are worth about the most does little harm: the least occupied of these
  // is taken without a look at the others.
  const double enough = std::max(*top - settings_.tolerance, 0.0);
  const auto busier = [&](int a, int b) {
    return score_[a] != score_[b] ? score_[a] > score_[b] : a > b;
  };
  gather(enough);
  std::make_heap(order_.begin(), order_.end(), busier);
  looks_ = kLooks;
  for (auto end = order_.end(); end != order_.begin() && looks_ > 0; --end) {
    const int k = order_.front();
    std::pop_heap(order_.begin(), end, busier);
    if (gain(pool, demand, k, now_s) > enough) {
      return k;
    }
  }
  return pick_best(pool, demand, now_s);
}

int GoodputChoice::pick_best(Pool& pool, const Demand& demand, double now_s) {
  const auto less = [&](int a, int b) {
    return worth_[a] != worth_[b] ? worth_[a] < worth_[b] : a > b;
  };
  gather(0.0);
  std::make_heap(order_.begin(), order_.end(), less);
  double best = 0.0;
  int chosen = -1;
  looks_ = kLooks;
  for (auto end = order_.end(); end != order_.begin() && looks_ > 0; --end) {
    const int k = order_.front();
    if (chosen >= 0 && worth_[k] < best - settings_.tolerance) {
      break;
    }
    std::pop_heap(order_.begin(), end, less);
    if (gain(pool, demand, k, now_s) > best) {
      best = gains_[k];
      chosen = k;
    }
  }
  for (std::size_t k = 0; chosen >= 0 && k < gains_.size(); ++k) {
    if (gains_[k] > 0.0 && gains_[k] >= best - settings_.tolerance && score_[k] < score_[chosen]) {
      chosen = static_cast<int>(k);
    }
  }
  return chosen;
}

void GoodputChoice::gather(double above) {
  order_.clear();
  for (std::size_t k = 0; k < worth_.size(); ++k) {
    if (worth_[k] > above) {
      order_.push_back(static_cast<int>(k));
    }
  }
}

double GoodputChoice::gain(Pool& pool, const Demand& demand, int k, double now_s) {
  if (std::isnan(gains_[k])) {
    --looks_;
    const Candidates& c = pool.candidates();
    const double prefill = demand.prompt_len - c.hit_tokens[k];
    gains_[k] = worth_[k] - pool.harm(c.slot[k], prefill, now_s);
  }
  return gains_[k];
}

}  // namespace goodput
