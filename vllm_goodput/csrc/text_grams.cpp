// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "text_grams.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "block_hash.h"
#include "small_logs.h"

namespace goodput {

namespace {

enum Kind : uint8_t { kSpace, kLetter, kDigit, kOther };

static_assert((kTextBuckets & (kTextBuckets - 1)) == 0, "buckets are taken from a hash's low bits");

// FNV-1a, 64 bits.
constexpr uint64_t kBasis = 0xcbf29ce484222325ULL;
constexpr uint64_t kPrime = 0x100000001b3ULL;
constexpr uint64_t kBreakHash = (kBasis ^ kTextBreak) * kPrime;
constexpr uint16_t kMaxCount = 65534;

// Memory that lives between calls.
struct Scratch {
  std::vector<uint8_t> lower;   // of each byte
  std::vector<uint8_t> kind;    // of each byte, and a space before and behind them
  std::vector<int8_t> keeps;    // 0 where a word starts, else -1
  std::vector<uint8_t> ended;   // whether a word ended just before
  std::vector<uint64_t> words;  // hashes
  std::vector<uint16_t> counts = std::vector<uint16_t>(kTextBuckets, 0);

  void fit(std::size_t bytes) {
    if (words.size() < bytes + 3) {
      lower.resize(bytes);
      kind.resize(bytes + 2);
      keeps.resize(bytes + 1);
      ended.resize(bytes + 1);
      words.resize(bytes + 3);
    }
  }
};

// This and the next are without a branch, so that a compiler does many bytes at a time.
void classify(const uint8_t* __restrict text, std::size_t size, uint8_t* __restrict lower,
              uint8_t* __restrict kind) {
  for (std::size_t i = 0; i < size; ++i) {
    const uint8_t c = text[i];
    const uint8_t upper = static_cast<uint8_t>(c - 'A') < 26 ? 32 : 0;
    lower[i] = c | upper;
    const uint8_t letter = (static_cast<uint8_t>((c | 32) - 'a') < 26) | (c >= 128);
    const uint8_t digit = static_cast<uint8_t>(c - '0') < 10;
    const uint8_t space = (static_cast<uint8_t>(c - 1) < ' ') | (c == 127);
    const uint8_t other = 1 ^ (letter | digit | space);
    kind[i] = static_cast<uint8_t>(kLetter * letter | kDigit * digit | kOther * other);
  }
}

void mark_words(const uint8_t* __restrict kind, std::size_t size, int8_t* __restrict keeps,
                uint8_t* __restrict ended) {
  for (std::size_t i = 0; i <= size; ++i) {
    const uint8_t before = kind[i];
    const uint8_t now = kind[i + 1];
    const uint8_t starts = (now != before) | (now == kOther);
    keeps[i] = static_cast<int8_t>(starts - 1);
    ended[i] = starts & (before != kSpace);
  }
}

// Hashes the words of a part of a text, a byte at a time and without a branch, since where a word
// ends cannot be foretold.
class Hasher {
 public:
  // The part begins where a word does, or between words. out[-1] is written, too.
  Hasher(const Scratch& text, std::size_t begin, uint64_t* out)
      : lower_(text.lower.data() + begin),
        keeps_(text.keeps.data() + begin),
        ended_(text.ended.data() + begin),
        out_(out - *ended_) {}  // what ended before belongs to the part before

  void step() {
    *out_ = hash_;
    out_ += *ended_++;
    const auto keep = static_cast<uint64_t>(int64_t{*keeps_++});
    hash_ = ((hash_ & keep) ^ ((kBasis & ~keep) ^ *lower_++)) * kPrime;
  }

  // Behind the last byte; returns where the hashes end.
  uint64_t* finish() {
    *out_ = hash_;
    return out_ + *ended_;
  }

 private:
  const uint8_t* lower_;
  const int8_t* keeps_;
  const uint8_t* ended_;
  uint64_t* out_;
  uint64_t hash_ = kBasis;
};

// Hashes of the words of `text` into `to.words`, kBreakHash for a break; returns how many.
std::size_t hash_words(std::string_view text, Scratch& to) {
  const std::size_t size = text.size();
  to.fit(size);
  classify(reinterpret_cast<const uint8_t*>(text.data()), size, to.lower.data(),
           to.kind.data() + 1);
  to.kind[0] = to.kind[size + 1] = kSpace;
  mark_words(to.kind.data(), size, to.keeps.data(), to.ended.data());
  // Two parts side by side: within a part, each step waits for the one before it.
  std::size_t middle = size / 2;
  while (middle < size && to.keeps[middle] != 0) {
    ++middle;
  }
  uint64_t* const first = to.words.data();
  uint64_t* const second = first + middle + 2;
  Hasher a(to, 0, first);
  Hasher b(to, middle, second);
  const std::size_t both = std::min(middle, size - middle);
  for (std::size_t i = 0; i < both; ++i) {
    a.step();
    b.step();
  }
  for (std::size_t i = both; i < middle; ++i) {
    a.step();
  }
  for (std::size_t i = both; i < size - middle; ++i) {
    b.step();
  }
  uint64_t* const end = a.finish();
  return static_cast<std::size_t>(std::copy(second, b.finish(), end) - first);
}

// Counts the uni- and bigrams of words into `counts`; their buckets, in order of appearance, into
// `out`. Returns how many.
std::size_t count_grams(const uint64_t* words, std::size_t size, uint16_t* counts, Gram* out) {
  std::size_t grams = 0;
  const auto add = [&grams, counts, out](uint64_t hash) {
    const auto bucket = static_cast<uint32_t>(mix(0, hash) % kTextBuckets);
    const uint16_t count = counts[bucket];
    out[grams].bucket = bucket;
    grams += count == 0;
    counts[bucket] = static_cast<uint16_t>(count + (count < kMaxCount));
  };
  uint64_t previous = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const uint64_t hash = words[i];
    if (hash == kBreakHash) {
      previous = 0;
      continue;
    }
    add(hash);
    if (previous != 0) {
      add(previous * 31 + hash);
    }
    previous = hash;
  }
  return grams;
}

}  // namespace

void text_grams(std::string_view text, std::vector<Gram>& out) {
  thread_local Scratch scratch;
  const std::size_t size = hash_words(text, scratch);
  uint16_t* const counts = scratch.counts.data();
  out.resize(2 * size + 1);  // one more is written, if not counted
  out.resize(count_grams(scratch.words.data(), size, counts, out.data()));
  float square = 0.0F;
  for (Gram& gram : out) {
    gram.weight = log1p_of(counts[gram.bucket]);
    counts[gram.bucket] = 0;
    square += gram.weight * gram.weight;
  }
  const float scale = out.empty() ? 0.0F : 1.0F / std::sqrt(square);
  for (Gram& gram : out) {
    gram.weight *= scale;
  }
}

}  // namespace goodput
