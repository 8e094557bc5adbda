// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "corrections.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "sessions.h"

namespace goodput {

namespace {

// Old residuals and losses of a key fade by this factor per new one (it looks back at about fifty),
// and old lengths in its histogram by this one (two hundred).
constexpr double kDecay = 0.98;
constexpr double kHistogramDecay = 0.995;
// By whether the model was trained on requests of the kind (true: [1]).
struct ByKnown {
  double no;
  double yes;
  double operator[](bool known) const { return known ? yes : no; }
};
// So many observations count as much as the model's own word on where the lengths of a key lie, or
// of a session.
constexpr ByKnown kShiftPrior = {12.0, 60.0};
constexpr ByKnown kSessionPrior = {10.0, 60.0};
// Log odds in favour of the model before a key has been observed.
constexpr ByKnown kOdds = {1.0, 4.0};
constexpr double kMaxOdds = 8.0;
// How fast the odds follow the gradient of the loss.
constexpr double kOddsRate = 0.25;
// Step of the conformal correction, natural log of tokens per miss, and its bound.
constexpr double kConformalStep = 0.01;
constexpr double kMaxConformal = 2.0;
// Kinds of requests that the model was not trained on begin with a wider distribution (standard
// deviation added, natural log of tokens), by how much of task and model is unknown; so many
// observations halve it.
constexpr std::array<double, 3> kDoubt = {0.0, 0.4, 0.8};
constexpr double kDoubtObservations = 3.0;
// So many observations of a key count as much as the latest model quantiles in its histogram.
constexpr double kHistogramPrior = 2.0;

const double kLog2 = std::log(2.0);

double pinball(double level, double error) {
  return std::max(level * error, (level - 1.0) * error);
}

}  // namespace

Levels::Levels(std::vector<double> levels, std::vector<double> normal)
    : levels_(std::move(levels)), normal_(std::move(normal)) {
  if (levels_.size() < 2 || levels_.size() != normal_.size()) {
    throw std::invalid_argument(
        "levels and their normal quantiles must be two at least, and equal in number");
  }
  double before = 0.0;
  for (const double level : levels_) {
    if (!(level > before && level < 1.0)) {
      throw std::invalid_argument("levels must rise between 0 and 1");
    }
    before = level;
  }
  above_ = static_cast<std::size_t>(std::lower_bound(levels_.begin(), levels_.end(), 0.5) -
                                    levels_.begin());
}

double Levels::median(const double* quantiles) const {
  if (above_ == levels_.size()) {
    return quantiles[above_ - 1];
  }
  if (above_ == 0 || levels_[above_] == 0.5) {
    return quantiles[above_];
  }
  const double low = levels_[above_ - 1];
  const double slope = (quantiles[above_] - quantiles[above_ - 1]) / (levels_[above_] - low);
  return slope * (0.5 - low) + quantiles[above_ - 1];
}

KeyState::KeyState(const Levels& levels, bool known)
    : shift_prior_(kShiftPrior[known]),
      odds_(kOdds[known]),
      histogram_(levels.size(), 0.0),
      conformal_(levels.size(), 0.0) {}

double KeyState::shift() const { return residual_ * count_ / (count_ + shift_prior_); }

double KeyState::model_share() const { return 1.0 / (1.0 + std::exp(-odds_)); }

void KeyState::learn(const Levels& levels, const double* raw, const double* final, double log_len,
                     bool censored) {
  if (censored) {
    // All that is known is a lower bound; what was expected stands in if it lies above.
    log_len = std::max(log_len, levels.median(final));
  } else {
    weigh(levels, raw, log_len);
    calibrate(levels, final, log_len);
  }
  const double residual = bounded_residual(log_len - levels.median(raw));
  count_ = kDecay * count_ + 1.0;
  residual_ += (residual - residual_) / count_;
  for (double& count : counts_) {
    count *= kHistogramDecay;
  }
  counts_[bucket_of(log_len)] += 1.0;
  take_histogram(levels, raw);
}

std::size_t KeyState::bucket_of(double log_len) {
  const double bucket = std::ceil(log_len / kLog2 * kPerOctave) - 1.0;
  return static_cast<std::size_t>(std::clamp(bucket, 0.0, static_cast<double>(kBuckets - 1)));
}

// One step down the gradient of the blend's pinball loss, in units of its recent mean.
void KeyState::weigh(const Levels& levels, const double* raw, double log_len) {
  if (count_ == 0.0) {
    return;
  }
  const double moved = shift();
  const double share = model_share();
  double loss = 0.0;
  double gradient = 0.0;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const double model = raw[i] + moved;
    const double blend = share * model + (1.0 - share) * histogram_[i];
    loss += pinball(levels[i], log_len - blend);
    const double slope = log_len > blend ? -levels[i] : 1.0 - levels[i];
    gradient += slope * (model - histogram_[i]);
  }
  const auto size = static_cast<double>(levels.size());
  loss_ = kDecay * loss_ + loss / size;
  losses_ = kDecay * losses_ + 1.0;
  const double mean = loss_ / losses_;
  if (mean > 0.0) {
    odds_ -= kOddsRate * (gradient / size) / mean;
    odds_ = std::min(kMaxOdds, std::max(-kMaxOdds, odds_));
  }
}

void KeyState::calibrate(const Levels& levels, const double* final, double log_len) {
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const double step = kConformalStep * (log_len <= final[i] ? levels[i] - 1.0 : levels[i]);
    conformal_[i] = std::clamp(conformal_[i] + step, -kMaxConformal, kMaxConformal);
  }
}

// Quantiles of the counts, with one observation's worth of the latest model quantiles mixed in.
void KeyState::take_histogram(const Levels& levels, const double* raw) {
  std::array<double, kBuckets> cumulative;
  double total = 0.0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    total += counts_[i];
    cumulative[i] = total;
  }
  const double moved = shift();
  const double trust = count_ / (count_ + kHistogramPrior);
  auto from = cumulative.begin();
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const double wanted = levels[i] * total;
    from = std::lower_bound(from, cumulative.end() - 1, wanted);
    const auto at = static_cast<std::size_t>(from - cumulative.begin());
    const double within = (cumulative[at] - wanted) / std::max(1e-12, counts_[at]);
    const double edge = kLog2 / kPerOctave * static_cast<double>(at + 1);
    const double own = edge - kLog2 / kPerOctave * std::clamp(within, 0.0, 1.0);
    histogram_[i] = trust * own + (1.0 - trust) * (raw[i] + moved);
  }
}

Corrections::Corrections(Levels levels, std::size_t max_keys)
    : levels_(std::move(levels)), keys_(max_keys) {}

void Corrections::apply(std::string_view key, std::size_t unknown, double session_shift,
                        const double* raw, double* out) const {
  const KeyState* state = keys_.find(key);
  const double moved = session_shift + (state != nullptr ? state->shift() : 0.0);
  const double share = state != nullptr ? state->model_share() : 1.0;
  const double count = state != nullptr ? state->count() : 0.0;
  const double doubt = kDoubt.at(unknown) / (1.0 + count / kDoubtObservations);
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    double log_len = raw[i] + moved;
    if (state != nullptr) {
      // It has been observed at least once, so it has a histogram.
      log_len = share * log_len + (1.0 - share) * state->histogram(i) + state->conformal(i);
    }
    out[i] = log_len + doubt * levels_.normal(i);
  }
  std::sort(out, out + levels_.size());
}

double Corrections::learn(std::string_view key, bool known, const double* raw, const double* final,
                          double log_len, bool censored) {
  KeyState& state = keys_.touch(key, levels_, known);
  const double residual = log_len - (levels_.median(raw) + state.shift());
  state.learn(levels_, raw, final, log_len, censored);
  return censored ? std::max(0.0, residual) : residual;
}

std::string correction_key(std::string_view task, std::string_view model) {
  std::string key;
  key.reserve(task.size() + 1 + model.size());
  key.append(task).push_back('\xff');
  return key.append(model);
}

double session_shift(double residual, double count, bool known) {
  return residual * count / (count + kSessionPrior[known]);
}

}  // namespace goodput
