// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "speed_estimator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace goodput {
namespace {

enum : std::size_t { kO, kP, kD0, kD1, kE };

constexpr std::array<bool, 5> kPrefillBlock = {true, true, false, false, false};
constexpr std::array<bool, 5> kDecodeBlock = {false, false, true, true, true};
constexpr std::array<bool, 5> kBothBlocks = {true, true, true, true, true};

// Starting point and unit: o [s], p [s/token], d0 [s/step], d1 [s/step/sequence], e [s].
constexpr std::array<double, 5> kPrior = {0.02, 1e-4, 0.02, 5e-4, 0.02};
constexpr double kPriorStd = 30.0;       // how far off the prior may be, relative to itself
constexpr double kPriorOffsetStd = 1.0;  // of e, which starts at 0
constexpr double kForgetting = 0.99;
// What is forgotten gives way to as little certainty of the present values: relative standard
// deviation, with a floor under the values; e is drawn to 0 within so many decode steps.
constexpr double kAnchorStd = 10.0;
constexpr double kAnchorFloor = 0.03;
constexpr double kOffsetAnchorSteps = 1.0;
constexpr double kOffsetMaxSteps = 4.0;

constexpr int64_t kSettled = 6;  // samples of a stream before any is doubted
constexpr int64_t kSpreadFrom = 3;
constexpr double kSpreadStep = 0.05;
constexpr double kMedianOfNormal = 0.674;  // median of |x| for a standard normal x
constexpr double kSpreadMin = 0.02;
constexpr double kPrefillSpread = 0.15, kPrefillSpreadMax = 0.2;
constexpr double kDecodeSpread = 0.05, kDecodeSpreadMax = 0.3;

// Spreads beyond which a sample counts little (Cauchy's weights). More for first tokens that are
// off in a way that no cached prefix explains: among many with one, whole prompts look like that.
constexpr double kWidth = 3.0, kWideWidth = 10.0;
constexpr double kPrefillGain = 0.05, kDecodeGain = 0.1;  // of the level, per sample
constexpr double kMaxNudge = 0.3;  // log ratio beyond which the level moves no more

constexpr double kOutside = 3.0;  // spreads that make a sample an outlier
constexpr double kPrefillOutside = 0.25, kDecodeOutside = 0.12;  // but no less, as a log ratio
constexpr std::size_t kStreak = 4;    // outliers to one side in a row: the speed has changed
constexpr std::size_t kMostOf = 6;    // too slow first tokens among the recent that mean the same
constexpr double kLargeShift = 0.69;  // of decoding: first tokens may have shifted as much
constexpr double kCachedCost = 0.3;   // of a too fast first token; cached prefixes explain it
constexpr double kKept = 0.05;        // information that is kept through a change of speed

constexpr double kMinTimeS = 1e-3;
constexpr double kMaxAmount = 1e9;
constexpr double kMaxTimeS = 1e6;
constexpr double kPivot = 1e-12;  // of a diagonal element; what is less is rounding

// Whether a sample can be computed with; absurd amounts are a mistake of whoever measured them.
bool usable(const Sample& s) {
  double work = 0.0;
  for (const double amount : {s.requests, s.prefill_tokens, s.steps, s.step_sequences}) {
    if (!(amount >= 0.0 && amount <= kMaxAmount)) return false;  // NaN too
    work += amount;
  }
  return work > 0.0 && s.time_s >= kMinTimeS && s.time_s <= kMaxTimeS;
}

// How much a sample counts, 0 to 1: about 1 up to `width` from what was expected.
double weight(double log_ratio, double width) {
  const double far = (log_ratio > 0.0 ? std::expm1(log_ratio) : log_ratio) / width;
  return 1.0 / (1.0 + far * far);
}

// The value that has `rank` of the first `count` below it.
double nth(std::array<double, 8> values, std::size_t count, std::size_t rank) {
  std::nth_element(values.begin(), values.begin() + rank, values.begin() + count);
  return values[rank];
}

}  // namespace

SpeedEstimator::SpeedEstimator() {
  theta_ = {1.0, 1.0, 1.0, 1.0, 0.0};
  for (std::size_t i = 0; i < kSize; ++i) {
    const double std = i == kE ? kPriorOffsetStd : kPriorStd;
    information_[i][i] = 1.0 / (std * std);
    moment_[i] = information_[i][i] * theta_[i];
  }
  prefill_.spread = kPrefillSpread;
  decode_.spread = kDecodeSpread;
}

void SpeedEstimator::add(const Sample& sample) {
  if (!usable(sample)) return;
  const bool decodes = sample.steps >= 1.0;
  const Block& block =
      !decodes ? kPrefillBlock : (sample.requests > 0.0 ? kBothBlocks : kDecodeBlock);
  Stream& stream = decodes ? decode_ : prefill_;
  Vector work = {sample.requests, sample.prefill_tokens, sample.steps, sample.step_sequences,
                 decodes ? 1.0 : 0.0};
  for (std::size_t i = 0; i < kSize; ++i) work[i] *= kPrior[i];

  // A cached prefix saves no more than all of the prefill.
  const auto cached = [&](double log_ratio) {
    return !decodes && log_ratio < 0.0 && sample.time_s > theta_[kO] * work[kO];
  };
  const bool settled = stream.count >= kSettled;
  double log_ratio = std::log(sample.time_s / expected(work));
  double trust = 1.0;
  if (settled) {
    if (follow_change(stream, block, log_ratio, cached(log_ratio))) {
      log_ratio = std::log(sample.time_s / expected(work));
    }
    const bool wide = !decodes && !cached(log_ratio);
    trust = weight(log_ratio, (wide ? kWideWidth : kWidth) * stream.spread);
    const double gain = decodes ? kDecodeGain : kPrefillGain;
    rescale(block, std::exp(gain * trust * std::clamp(log_ratio, -kMaxNudge, kMaxNudge)));
    log_ratio = std::log(sample.time_s / expected(work));
  }
  const bool outlier = settled && cached(log_ratio) && log_ratio < -kOutside * stream.spread;
  if (stream.count >= kSpreadFrom && !outlier) {
    const bool above = std::abs(log_ratio) > kMedianOfNormal * stream.spread;
    stream.spread = std::clamp(stream.spread * std::exp(above ? kSpreadStep : -kSpreadStep),
                               kSpreadMin, decodes ? kDecodeSpreadMax : kPrefillSpreadMax);
  }
  // Relative to what was expected: relative to what was measured, slow samples would count less.
  const double scale = settled ? expected(work) : sample.time_s;
  for (double& amount : work) amount /= scale;
  learn(work, sample.time_s / scale, trust / (stream.spread * stream.spread));
  solve(block);
  ++stream.count;
  ++samples_;
}

double SpeedEstimator::overhead_s() const { return theta_[kO] * kPrior[kO]; }

double SpeedEstimator::prefill_token_s() const { return theta_[kP] * kPrior[kP]; }

double SpeedEstimator::decode_base_s() const { return theta_[kD0] * kPrior[kD0]; }

double SpeedEstimator::decode_sequence_s() const { return theta_[kD1] * kPrior[kD1]; }

double SpeedEstimator::decode_offset_s() const { return theta_[kE] * kPrior[kE]; }

double SpeedEstimator::decode_step_s(double sequences) const {
  return decode_step(decode_base_s(), decode_sequence_s(), sequences);
}

// Time that this work, in units of the prior, should take.
double SpeedEstimator::expected(const Vector& work) const {
  double sum = 0.0;
  for (std::size_t i = 0; i < kSize; ++i) sum += work[i] * theta_[i];
  return std::max(sum, 1e-6);
}

// Moves the level where the recent samples say that the speed has changed. Returns whether it did.
bool SpeedEstimator::follow_change(Stream& stream, const Block& block, double log_ratio,
                                   bool cached) {
  if (stream.recent_count == kRecent) {
    std::copy(stream.recent.begin() + 1, stream.recent.end(), stream.recent.begin());
    --stream.recent_count;
  }
  stream.recent[stream.recent_count++] = log_ratio;
  stream.uncached = cached || log_ratio > 0.0 ? 0 : stream.uncached + 1;
  const bool decodes = &stream == &decode_;
  const double shift = decodes ? decode_shift(stream) : prefill_shift();
  if (shift == 0.0) return false;
  jump(block, shift);
  stream.recent_count = 0;
  if (decodes && !block[kP] && std::abs(shift) > kLargeShift && prefill_changed_too(shift)) {
    jump(kPrefillBlock, shift);
    prefill_.recent_count = 0;
  }
  return true;
}

// By how much decoding has become slower, as a log ratio; 0 where it has not changed.
double SpeedEstimator::decode_shift(const Stream& stream) const {
  if (stream.recent_count < kStreak) return 0.0;
  const double limit = std::max(kOutside * stream.spread, kDecodeOutside);
  const auto end = stream.recent.begin() + static_cast<std::ptrdiff_t>(stream.recent_count);
  const auto [least, most] = std::minmax_element(end - kStreak, end);
  if (*least <= limit && *most >= -limit) return 0.0;
  std::array<double, kRecent> last{};
  std::copy(end - kStreak, end, last.begin());
  return nth(last, kStreak, kStreak / 2);
}

// The same for first tokens. Too slow ones mean a change sooner than too fast ones, among which may
// be cached prefixes.
double SpeedEstimator::prefill_shift() const {
  const double limit = std::max(kOutside * prefill_.spread, kPrefillOutside);
  std::array<double, kRecent> slow{};
  std::size_t slow_count = 0, slow_streak = 0, fast_streak = 0;
  for (std::size_t i = 0; i < prefill_.recent_count; ++i) {
    const double ratio = prefill_.recent[i];
    slow_streak = ratio > limit ? slow_streak + 1 : 0;
    fast_streak = ratio < -limit ? fast_streak + 1 : 0;
    if (ratio > limit) slow[slow_count++] = ratio;
  }
  if (slow_streak >= kStreak || slow_count >= kMostOf) {
    return nth(slow, slow_count, slow_count / 2);
  }
  const std::size_t need = prefill_.uncached >= kStreak ? kStreak : kRecent;
  if (fast_streak < need) return 0.0;
  std::array<double, kRecent> fast{};
  std::copy_n(prefill_.recent.begin() + (prefill_.recent_count - need), need, fast.begin());
  return nth(fast, need, need * 5 / 8);
}

// Whether the latest first tokens look more usual if they too take exp(shift) times as long.
bool SpeedEstimator::prefill_changed_too(double shift) const {
  const auto cost = [](double ratio) {
    return ratio > 0.0 ? std::min(1.0, ratio) : kCachedCost * std::min(1.0, -ratio);
  };
  double before = 0.0, after = 0.0;
  const std::size_t count = std::min(kStreak, prefill_.recent_count);
  for (std::size_t i = prefill_.recent_count - count; i < prefill_.recent_count; ++i) {
    before += cost(prefill_.recent[i]);
    after += cost(prefill_.recent[i] - shift);
  }
  return after < before;
}

// Scales the parameters by exp(shift), and lets new samples outweigh the old soon.
void SpeedEstimator::jump(const Block& block, double shift) {
  rescale(block, std::exp(shift));
  const double keep = std::sqrt(kKept);
  moment_ = {};
  for (std::size_t i = 0; i < kSize; ++i) {
    for (std::size_t j = 0; j < kSize; ++j) {
      information_[i][j] *= (block[i] ? keep : 1.0) * (block[j] ? keep : 1.0);
      moment_[i] += information_[i][j] * theta_[j];
    }
  }
}

// Multiplies parameters, and all that has been learned of them.
void SpeedEstimator::rescale(const Block& block, double factor) {
  for (std::size_t i = 0; i < kSize; ++i) {
    const double by = block[i] ? factor : 1.0;
    theta_[i] *= by;
    moment_[i] /= by;
    for (std::size_t j = 0; j < kSize; ++j) information_[i][j] /= by * (block[j] ? factor : 1.0);
  }
}

// One step of the regression: forgets a little, adds scaled * theta = target.
void SpeedEstimator::learn(const Vector& scaled, double target, double weight) {
  const double step = theta_[kD0] + theta_[kD1] * kPrior[kD1] / kPrior[kD0];  // d(1)
  for (std::size_t i = 0; i < kSize; ++i) {
    for (std::size_t j = 0; j < kSize; ++j) {
      information_[i][j] = kForgetting * information_[i][j] + weight * scaled[i] * scaled[j];
    }
    const double std = i == kE ? kOffsetAnchorSteps * std::max(step, 1e-6)
                               : kAnchorStd * std::max(theta_[i], kAnchorFloor);
    const double anchor = (1.0 - kForgetting) / (std * std);
    information_[i][i] += anchor;
    moment_[i] = kForgetting * moment_[i] + weight * scaled[i] * target +
                 anchor * (i == kE ? 0.0 : theta_[i]);
  }
}

// Solves the normal equations for these parameters, the others given. One other than e that comes
// out negative is set to 0, the worst first.
void SpeedEstimator::solve(const Block& block) {
  std::array<std::size_t, kSize> free{};
  std::size_t size = 0;
  Vector right = moment_;
  for (std::size_t i = 0; i < kSize; ++i) {
    if (block[i]) free[size++] = i;
    for (std::size_t j = 0; j < kSize && !block[i]; ++j) right[j] -= information_[j][i] * theta_[i];
  }
  while (size > 0) {
    Matrix lower;
    Vector y;
    for (std::size_t i = 0; i < size; ++i) {  // Cholesky, and the forward substitution with it
      for (std::size_t j = 0; j <= i; ++j) {
        double sum = information_[free[i]][free[j]];
        for (std::size_t k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
        lower[i][j] = i == j ? std::sqrt(std::max(sum, kPivot * information_[free[i]][free[i]]))
                             : sum / lower[j][j];
      }
      double sum = right[free[i]];
      for (std::size_t k = 0; k < i; ++k) sum -= lower[i][k] * y[k];
      y[i] = sum / lower[i][i];
    }
    std::size_t worst = size;
    for (std::size_t i = size; i-- > 0;) {
      double sum = y[i];
      for (std::size_t k = i + 1; k < size; ++k) sum -= lower[k][i] * theta_[free[k]];
      theta_[free[i]] = sum / lower[i][i];
      const bool worse = worst == size || theta_[free[i]] < theta_[free[worst]];
      if (free[i] != kE && theta_[free[i]] < 0.0 && worse) worst = i;
    }
    if (worst == size) break;
    theta_[free[worst]] = 0.0;
    std::copy(free.begin() + worst + 1, free.begin() + size, free.begin() + worst);
    --size;
  }
  const double step = theta_[kD0] + theta_[kD1] * kPrior[kD1] / kPrior[kD0];  // d(1)
  theta_[kE] = std::clamp(theta_[kE], -kOffsetMaxSteps * step, kOffsetMaxSteps * step);
}

}  // namespace goodput
