// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "request_features.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace goodput {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Numbers = std::array<double, FeatureRows::kNumbers>;

// What is known of earlier lengths; the rest of a row's numbers.
void put_session(const RequestView& view, const SessionLengths& session, double* out) {
  const auto& logs = session.latest;
  const auto count = static_cast<double>(session.count);
  *out++ = count;
  for (std::size_t i = 0; i < SessionLengths::kLatest; ++i) {
    *out++ = count > static_cast<double>(i) ? logs[i] : kNaN;
  }
  *out++ = session.total / count;
  *out++ = session.high;
  *out++ = session.low;
  *out++ = session.deviation();
  const double growth = std::max(0.0, view.prompt_len - session.context_len);
  *out++ = session.context_len != 0.0 ? std::log1p(growth) : kNaN;
  *out++ = view.repeats;
  *out++ = session.count > 1 ? (logs[0] == logs[1] ? 1.0 : 0.0) : kNaN;
}

void put_no_session(const RequestView& view, double* out) {
  *out++ = 0.0;
  out = std::fill_n(out, 9, kNaN);
  *out++ = view.repeats;
  *out++ = kNaN;
}

Numbers numbers_of(const RequestView& view, const SessionLengths* session) {
  SessionLengths told;
  if (session == nullptr || session->count == 0) {
    for (const double length : view.answer_lens) {
      told.add(0.0, length, 0.0);
    }
    session = told.count != 0 ? &told : nullptr;
  }
  const double turns = session != nullptr ? static_cast<double>(session->count) : 0.0;
  Numbers out = {
      std::log1p(view.prompt_len),
      std::log1p(view.chars[0]),
      std::log1p(view.chars[1]),
      std::log1p(view.chars[2]),
      std::max(view.turn, turns),
      std::log1p(view.tools),
      view.tool_results,
      view.form,
      view.max_tokens != 0.0 ? std::log(view.max_tokens) : kNaN,
      view.stops,
      view.chat,
      view.role,
  };
  if (session != nullptr) {
    put_session(view, *session, out.data() + 12);
  } else {
    put_no_session(view, out.data() + 12);
  }
  return out;
}

}  // namespace

void FeatureRows::add(const RequestView& view, const SessionLengths* session) {
  for (const double number : numbers_of(view, session)) {
    dense_.push_back(static_cast<float>(number));
  }
  for (std::size_t window = 0; window < RequestView::kWindows; ++window) {
    const auto stats = text_stats(view.texts[window]);
    dense_.insert(dense_.end(), stats.begin(), stats.end());
    add_grams(view.texts[window], window);
  }
  ends_.push_back(static_cast<int64_t>(indices_.size()));
}

FeatureRows FeatureRows::row(std::size_t index) const {
  FeatureRows made;
  made.dense_.assign(dense_.begin() + index * kDense, dense_.begin() + (index + 1) * kDense);
  made.indices_.assign(indices_.begin() + ends_[index], indices_.begin() + ends_[index + 1]);
  made.weights_.assign(weights_.begin() + ends_[index], weights_.begin() + ends_[index + 1]);
  made.ends_ = {0, ends_[index + 1] - ends_[index]};
  return made;
}

void FeatureRows::add_grams(std::string_view text, std::size_t window) {
  text_grams(text, grams_);
  const std::size_t begin = indices_.size();
  indices_.resize(begin + grams_.size());
  weights_.resize(begin + grams_.size());
  const auto offset = static_cast<uint32_t>(window) * kTextBuckets;
  for (std::size_t i = 0; i < grams_.size(); ++i) {
    indices_[begin + i] = static_cast<int32_t>(offset + grams_[i].bucket);
    weights_[begin + i] = grams_[i].weight;
  }
}

}  // namespace goodput
