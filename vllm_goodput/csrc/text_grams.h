// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace goodput {

// Buckets that the n-grams of one text window fall into.
constexpr uint32_t kTextBuckets = 4096;
// A byte that separates the head of a cut text from its tail: no n-gram spans it.
constexpr unsigned char kTextBreak = 0;

struct Gram {
  uint32_t bucket;
  float weight;
};

// Hashed word unigrams and bigrams of UTF-8 `text`, weighed log(1 + count) and scaled to unit
// length; `out` is replaced. A word is a run of letters (lower-cased, bytes
// above 127 count as letters) or of digits; any other visible byte stands for itself.
void text_grams(std::string_view text, std::vector<Gram>& out);

}  // namespace goodput
