// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// What finished requests correct at once; predictor/online.py describes the method. Plain C++
// without Python; not synchronised.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "recent_map.h"

namespace goodput {

// Rising quantile levels inside (0, 1), and what is often asked of them.
class Levels {
 public:
  // `normal`: the standard normal distribution's quantiles at the levels. Throws
  // std::invalid_argument where sizes differ, are below 2, or levels do not rise inside (0, 1).
  Levels(std::vector<double> levels, std::vector<double> normal);

  std::size_t size() const { return levels_.size(); }
  double operator[](std::size_t i) const { return levels_[i]; }
  double normal(std::size_t i) const { return normal_[i]; }
  // Of quantiles at these levels: the one at one half, linear between two.
  double median(const double* quantiles) const;

 private:
  std::vector<double> levels_;
  std::vector<double> normal_;
  std::size_t above_;  // the first level that is not below one half, or the number of levels
};

// What is known of one kind of requests, (task, model), from those of it that finished.
class KeyState {
 public:
  // `known`: whether the model was trained on requests of this kind.
  KeyState(const Levels& levels, bool known);

  // Correction of where the lengths lie, natural log of tokens.
  double shift() const;
  // Weight of the model beside the histogram, in (0, 1).
  double model_share() const;
  // Fading number of requests.
  double count() const { return count_; }
  double histogram(std::size_t level) const { return histogram_[level]; }
  double conformal(std::size_t level) const { return conformal_[level]; }

  // A request finished. `raw`: the model's log quantiles for it; `final`: what was predicted after
  // all corrections; `censored`: it was cut off, so that it would have been at least so long.
  void learn(const Levels& levels, const double* raw, const double* final, double log_len,
             bool censored);

 private:
  static constexpr std::size_t kPerOctave = 8;
  static constexpr std::size_t kBuckets = 21 * kPerOctave;  // up to 2**21 tokens

  static std::size_t bucket_of(double log_len);
  void weigh(const Levels& levels, const double* raw, double log_len);
  void calibrate(const Levels& levels, const double* final, double log_len);
  void take_histogram(const Levels& levels, const double* raw);

  double shift_prior_;
  double odds_;
  double count_ = 0.0;
  double residual_ = 0.0;  // fading mean
  double loss_ = 0.0;      // fading sum
  double losses_ = 0.0;    // and count
  std::array<double, kBuckets> counts_ = {};
  std::vector<double> histogram_;  // its quantiles, log; of no use before anything finished
  std::vector<double> conformal_;
};

// Corrections by key; the least recently observed is forgotten first.
class Corrections {
 public:
  Corrections(Levels levels, std::size_t max_keys);

  // Corrected log quantiles of one request, non-decreasing along the levels.
  // raw, out: [levels]; `unknown`: how many of task and model the model was not trained on, at
  // most 2; `session_shift`: see there.
  void apply(std::string_view key, std::size_t unknown, double session_shift, const double* raw,
             double* out) const;
  // A request finished, see KeyState. Returns what the key did not explain of its log length: the
  // session's own residual.
  double learn(std::string_view key, bool known, const double* raw, const double* final,
               double log_len, bool censored);

  const Levels& levels() const { return levels_; }
  std::size_t size() const { return keys_.size(); }

 private:
  Levels levels_;
  RecentMap<KeyState> keys_;
};

// Name of a kind of requests among all; neither part may hold a byte 255, which UTF-8 does not.
std::string correction_key(std::string_view task, std::string_view model);

// Correction by a session's mean residual over `count` finished turns; `known` as above.
double session_shift(double residual, double count, bool known);

}  // namespace goodput
