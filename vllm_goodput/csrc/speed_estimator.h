// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// Speed of one instance as a black box, from response timings alone: fixed overhead o, prefill time
// per token p and decode step time d(n) = d0 + d1 * n. Plain C++ without Python; copyable, of fixed
// size, no heap.
#pragma once

#include <array>
#include <cstdint>

namespace goodput {

// One equation: `time_s` spent on these amounts of work.
struct Sample {
  double time_s;
  double requests;
  double prefill_tokens;
  double steps;
  double step_sequences;  // decode steps x sequences in the batch
};

// Regularised, non-negative least squares with forgetting on the equations of one instance.
class SpeedEstimator {
 public:
  SpeedEstimator();

  // Learns from one equation; one without work or time, or with a number that is not finite, is
  // ignored.
  void add(const Sample& sample);

  double overhead_s() const;                      // o: fixed time per request
  double prefill_token_s() const;                 // p: seconds per prompt token
  double decode_step_s(double sequences) const;   // d(n): seconds per output token, n in the batch
  double decode_base_s() const;                   // d0
  double decode_sequence_s() const;               // d1
  double decode_offset_s() const { return 0.0; }  // e: fixed time per answer, may be negative
  bool known() const { return samples_ > 0; }     // whether at least one response has been seen
  int64_t samples() const { return samples_; }    // equations that the estimate rests on

 private:
  using Vector = std::array<double, 4>;
  using Matrix = std::array<Vector, 4>;

  Vector solve() const;
  double clipped(double residual);
  void forget();

  Vector theta_;   // o, p, d0, d1 in units of the prior
  Vector center_;  // what a ridge pulls towards: what new samples say nothing about stays as it was
  double center_std_;
  Matrix gram_{};
  Vector moment_{};
  double mean_abs_residual_;
  int streak_ = 0;
  int64_t samples_ = 0;
};

}  // namespace goodput
