// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// Speed of one instance as a black box, from response timings alone: fixed overhead o, prefill time
// per token p, decode step time d(n) = d0 + d1 * n, and a fixed time e of an answer's decode part.
// Plain C++ without Python; copyable, of fixed size, no heap. Not thread-safe.
#pragma once

#include <algorithm>
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

// d(n) = base + sequence * n, never below a floor.
inline double decode_step(double base_s, double sequence_s, double sequences) {
  constexpr double kMinStepS = 1e-5;
  return std::max(kMinStepS, base_s + sequence_s * sequences);
}

// Robust, regularised, non-negative least squares with forgetting on
//
//   time = o * requests + p * prefill_tokens + d0 * steps + d1 * step_sequences (+ e where it
//   decodes)
//
// in relative errors. Two streams of samples, first tokens and decoding, have their own usual
// error; what lies far outside it counts little. A time far too short for its prompt is taken for a
// prefix that was cached. Each sample first moves the level of its stream (all its parameters by
// one factor), then the regression corrects the shape; several samples in a row that are off to the
// same side move the level at once. Parameters that new samples say nothing of stay as they are.
class SpeedEstimator {
 public:
  SpeedEstimator();

  // Learns from one equation; one without work or time, or with a number that is not finite, is
  // ignored.
  void add(const Sample& sample);

  double overhead_s() const;                     // o: fixed time per request
  double prefill_token_s() const;                // p: seconds per prompt token
  double decode_step_s(double sequences) const;  // d(n): seconds per output token, n in the batch
  double decode_base_s() const;                  // d0
  double decode_sequence_s() const;              // d1
  double decode_offset_s() const;                // e: fixed time per answer, may be negative
  bool known() const { return samples_ > 0; }    // whether at least one response has been seen
  int64_t samples() const { return samples_; }   // equations seen

 private:
  static constexpr std::size_t kSize = 5;  // o, p, d0, d1, e in units of the prior
  static constexpr std::size_t kRecent = 8;
  using Vector = std::array<double, kSize>;
  using Matrix = std::array<Vector, kSize>;
  using Block = std::array<bool, kSize>;  // some of the parameters

  // Samples of one kind: how far they usually are from what was expected, and the latest.
  struct Stream {
    double spread;                         // of log(time / expected), as a standard deviation
    std::array<double, kRecent> recent{};  // log(time / expected), oldest first
    std::size_t recent_count = 0;
    std::size_t uncached = 0;  // too fast in a row, by more than a cached prefix explains
    int64_t count = 0;
  };

  double expected(const Vector& work) const;
  bool follow_change(Stream& stream, const Block& block, double log_ratio, bool cached);
  double decode_shift(const Stream& stream) const;
  double prefill_shift() const;
  bool prefill_changed_too(double shift) const;
  void jump(const Block& block, double shift);
  void rescale(const Block& block, double factor);
  void learn(const Vector& scaled, double target, double weight);
  void solve(const Block& block);

  Vector theta_;
  Matrix information_{};  // normal equations: information_ * theta_ = moment_
  Vector moment_{};
  Stream prefill_;
  Stream decode_;
  int64_t samples_ = 0;
};

}  // namespace goodput
