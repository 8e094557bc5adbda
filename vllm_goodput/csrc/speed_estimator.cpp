// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "speed_estimator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace goodput {
namespace {

constexpr int kParameters = 4;
// Starting point and unit of each parameter: o [s], p [s/token], d0 [s/step], d1 [s/step/sequence].
constexpr std::array<double, 4> kPrior = {0.02, 1e-4, 0.02, 5e-4};
constexpr double kPriorStd = 30.0;  // how far off the prior may be, relative to itself
constexpr double kNoise = 0.1;      // expected relative error of one equation
constexpr double kForgetting = 0.98;
constexpr double kChangeStd = 3.0;  // how far off the last values may be after a change of speed
constexpr double kClip = 4.0;       // residuals beyond this many mean absolute ones are clipped
constexpr int64_t kSettled = 8;     // samples before anything is clipped
constexpr int kChangeStreak = 4;    // clipped ones of one sign in a row that mean a change of speed
constexpr double kUsualResidual = 0.1;
constexpr double kMinTimeS = 1e-3;
constexpr double kMaxAmount = 1e12;
constexpr double kMinStepS = 1e-5;

// Solves a symmetric positive definite system of the parameters marked free; the others get 0.
std::array<double, 4> solve_free(const std::array<std::array<double, 4>, 4>& matrix,
                                 const std::array<double, 4>& right,
                                 const std::array<bool, 4>& free) {
  std::array<int, 4> index{};
  int size = 0;
  for (int i = 0; i < kParameters; ++i) {
    if (free[i]) index[size++] = i;
  }
  std::array<std::array<double, 4>, 4> lower{};
  std::array<double, 4> y{};
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j <= i; ++j) {
      double sum = matrix[index[i]][index[j]];
      for (int k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
      lower[i][j] = i == j ? std::sqrt(std::max(sum, 1e-300)) : sum / lower[j][j];
    }
    double sum = right[index[i]];
    for (int k = 0; k < i; ++k) sum -= lower[i][k] * y[k];
    y[i] = sum / lower[i][i];
  }
  std::array<double, 4> out{};
  for (int i = size - 1; i >= 0; --i) {
    double sum = y[i];
    for (int k = i + 1; k < size; ++k) sum -= lower[k][i] * out[index[k]];
    out[index[i]] = sum / lower[i][i];
  }
  return out;
}

// Whether a sample can be computed with; what is beyond kMaxAmount is a mistake of whoever measured
// it.
bool usable(const Sample& s) {
  double work = 0.0;
  for (const double amount : {s.requests, s.prefill_tokens, s.steps, s.step_sequences}) {
    if (!(amount >= 0.0 && amount <= kMaxAmount)) return false;  // NaN too
    work += amount;
  }
  return work > 0.0 && s.time_s >= kMinTimeS && s.time_s <= kMaxAmount;
}

}  // namespace

SpeedEstimator::SpeedEstimator() : center_std_(kPriorStd), mean_abs_residual_(kUsualResidual) {
  theta_.fill(1.0);
  center_.fill(1.0);
}

void SpeedEstimator::add(const Sample& sample) {
  if (!usable(sample)) return;
  const Vector amounts = {sample.requests, sample.prefill_tokens, sample.steps,
                          sample.step_sequences};
  Vector x;
  double fitted = 0.0;
  for (int i = 0; i < kParameters; ++i) {
    x[i] = amounts[i] * kPrior[i] / sample.time_s;
    fitted += x[i] * theta_[i];
  }
  const double target = fitted + clipped(1.0 - fitted);
  for (int i = 0; i < kParameters; ++i) {
    for (int j = 0; j < kParameters; ++j) {
      gram_[i][j] = kForgetting * gram_[i][j] + x[i] * x[j] / (kNoise * kNoise);
    }
    moment_[i] = kForgetting * moment_[i] + x[i] * target / (kNoise * kNoise);
  }
  theta_ = solve();
  ++samples_;
}

double SpeedEstimator::overhead_s() const { return theta_[0] * kPrior[0]; }

double SpeedEstimator::prefill_token_s() const { return theta_[1] * kPrior[1]; }

double SpeedEstimator::decode_base_s() const { return theta_[2] * kPrior[2]; }

double SpeedEstimator::decode_sequence_s() const { return theta_[3] * kPrior[3]; }

double SpeedEstimator::decode_step_s(double sequences) const {
  return std::max(kMinStepS, decode_base_s() + decode_sequence_s() * sequences);
}

// Least squares with a ridge towards the center; coefficients that come out negative are set to 0.
SpeedEstimator::Vector SpeedEstimator::solve() const {
  Matrix gram = gram_;
  Vector moment = moment_;
  for (int i = 0; i < kParameters; ++i) {
    const double std = center_std_ * center_[i];
    gram[i][i] += 1.0 / (std * std);
    moment[i] += center_[i] / (std * std);
  }
  std::array<bool, 4> free = {true, true, true, true};
  Vector theta{};
  for (int left = kParameters; left > 0; --left) {
    theta = solve_free(gram, moment, free);
    const auto least = std::min_element(theta.begin(), theta.end());
    if (*least >= 0.0) return theta;
    free[static_cast<std::size_t>(least - theta.begin())] = false;
  }
  return Vector{};
}

// Limits a residual far outside the usual, unless several in a row say that the speed has changed.
double SpeedEstimator::clipped(double residual) {
  if (samples_ < kSettled) return residual;
  const double bound = std::min(0.5, kClip * std::max(0.05, mean_abs_residual_));
  const int outside = std::abs(residual) <= bound ? 0 : (residual > 0.0 ? 1 : -1);
  streak_ = outside != 0 && outside * streak_ >= 0 ? streak_ + outside : 0;
  if (std::abs(streak_) >= kChangeStreak) {
    forget();
    return residual;
  }
  const double limited = std::clamp(residual, -bound, bound);
  mean_abs_residual_ += 0.1 * (std::abs(limited) - mean_abs_residual_);
  return limited;
}

// The instance has become faster or slower: let new samples outweigh the old at once.
void SpeedEstimator::forget() {
  for (int i = 0; i < kParameters; ++i) center_[i] = std::max(theta_[i], 0.1);
  center_std_ = kChangeStd;
  gram_ = Matrix{};
  moment_ = Vector{};
  mean_abs_residual_ = kUsualResidual;
  streak_ = 0;
  samples_ = 1;
}

}  // namespace goodput
