// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// From a request's view to the numbers that the length model is fed with. Plain C++ without Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "mixture.h"
#include "sessions.h"
#include "text_grams.h"
#include "text_stats.h"

namespace goodput {

// As RequestView in predictor/view.py; the texts are kept elsewhere.
struct RequestView {
  static constexpr std::size_t kWindows = 3;

  double prompt_len = 1.0;
  std::array<std::string_view, kWindows> texts;  // last, first, answer
  std::array<double, kWindows> chars = {};       // their full lengths
  double turn = 0.0;
  std::vector<double> answer_lens;
  double repeats = 0.0;
  double role = 0.0;
  double tools = 0.0;
  double tool_results = 0.0;
  double form = 0.0;
  double stops = 0.0;
  double max_tokens = 0.0;  // 0: no limit
  double chat = 1.0;
};

// Features of requests, one row after the other.
class FeatureRows {
 public:
  // Numbers of a row, in the order of NUMBERS in predictor/features.py.
  static constexpr std::size_t kNumbers = 24;
  static constexpr std::size_t kDense = kNumbers + RequestView::kWindows * kTextStats;
  static constexpr std::size_t kGramColumns = RequestView::kWindows * kTextBuckets;

  // `session`: the lengths so far of the request's session; null where not known.
  void add(const RequestView& view, const SessionLengths* session);

  // A copy of one row.
  FeatureRows row(std::size_t index) const;

  std::size_t size() const { return ends_.size() - 1; }
  const std::vector<float>& dense() const { return dense_; }
  const std::vector<int64_t>& ends() const { return ends_; }
  const std::vector<int32_t>& indices() const { return indices_; }
  const std::vector<float>& weights() const { return weights_; }
  FeatureSpan span() const {
    return {dense_.data(), ends_.data(), indices_.data(), weights_.data(), size()};
  }

 private:
  void add_grams(std::string_view text, std::size_t window);

  std::vector<float> dense_;
  std::vector<int64_t> ends_ = {0};
  std::vector<int32_t> indices_;
  std::vector<float> weights_;
  std::vector<Gram> grams_;
};

}  // namespace goodput
