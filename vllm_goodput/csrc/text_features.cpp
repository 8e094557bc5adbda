// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "text_features.h"

#include <algorithm>
#include <cmath>

#include "block_hash.h"

namespace goodput {

namespace {

enum class Kind : unsigned char { kSpace, kLetter, kDigit, kOther, kBreak };

struct Tables {
  std::array<Kind, 256> kind{};
  std::array<unsigned char, 256> lower{};

  Tables() {
    for (int c = 0; c < 256; ++c) {
      const bool upper = c >= 'A' && c <= 'Z';
      lower[c] = static_cast<unsigned char>(upper ? c + 32 : c);
      if (c == kTextBreak) {
        kind[c] = Kind::kBreak;
      } else if (upper || (c >= 'a' && c <= 'z') || c >= 128) {
        kind[c] = Kind::kLetter;
      } else if (c >= '0' && c <= '9') {
        kind[c] = Kind::kDigit;
      } else {
        kind[c] = c > ' ' && c != 127 ? Kind::kOther : Kind::kSpace;
      }
    }
  }
};

const Tables& tables() {
  static const Tables made;
  return made;
}

constexpr uint64_t kBasis = 0xcbf29ce484222325ULL;
constexpr uint64_t kPrime = 0x100000001b3ULL;

uint32_t bucket_of(uint64_t hash) { return static_cast<uint32_t>(mix(0, hash) % kTextBuckets); }

// Calls word(hash) for every word and gap() at every break.
template <typename Word, typename Gap>
void for_each_word(std::string_view text, Word word, Gap gap) {
  const Tables& table = tables();
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const Kind kind = table.kind[byte];
    ++i;
    if (kind == Kind::kSpace) {
      continue;
    }
    if (kind == Kind::kBreak) {
      gap();
      continue;
    }
    uint64_t hash = (kBasis ^ table.lower[byte]) * kPrime;
    if (kind != Kind::kOther) {
      for (; i < text.size(); ++i) {
        const auto next = static_cast<unsigned char>(text[i]);
        if (table.kind[next] != kind) {
          break;
        }
        hash = (hash ^ table.lower[next]) * kPrime;
      }
    }
    word(hash);
  }
}

float log1p_of(std::size_t count) { return std::log1p(static_cast<float>(count)); }

}  // namespace

void text_grams(std::string_view text, std::vector<Gram>& out) {
  // Counts live between calls so that a window of a few hundred words costs no clearing of 4,096.
  thread_local std::vector<uint16_t> counts(kTextBuckets, 0);
  out.clear();
  const auto add = [&out](uint32_t bucket) {
    uint16_t& count = counts[bucket];
    if (count == 0) {
      out.push_back({bucket, 0.0F});
    }
    count = static_cast<uint16_t>(std::min(65534, count + 1));
  };
  uint64_t previous = 0;
  for_each_word(
      text,
      [&](uint64_t hash) {
        add(bucket_of(hash));
        if (previous != 0) {
          add(bucket_of(previous * 31 + hash));
        }
        previous = hash;
      },
      [&previous] { previous = 0; });
  std::sort(out.begin(), out.end(),
            [](const Gram& a, const Gram& b) { return a.bucket < b.bucket; });
  float square = 0.0F;
  for (Gram& gram : out) {
    gram.weight = std::log1p(static_cast<float>(counts[gram.bucket]));
    counts[gram.bucket] = 0;
    square += gram.weight * gram.weight;
  }
  const float scale = out.empty() ? 0.0F : 1.0F / std::sqrt(square);
  for (Gram& gram : out) {
    gram.weight *= scale;
  }
}

std::array<float, kTextStats> text_stats(std::string_view text) {
  const Tables& table = tables();
  std::array<std::size_t, 256> seen{};
  std::size_t words = 0, numbers = 0, longest_line = 0, line = 0;
  Kind previous = Kind::kSpace;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const Kind kind = table.kind[byte];
    ++seen[byte];
    words += kind == Kind::kLetter && previous != Kind::kLetter;
    numbers += kind == Kind::kDigit && previous != Kind::kDigit;
    line = byte == '\n' ? 0 : line + 1;
    longest_line = std::max(longest_line, line);
    previous = kind;
  }
  std::size_t digits = 0, upper = 0, space = 0, other = 0, high = 0;
  for (int c = 0; c < 256; ++c) {
    digits += table.kind[c] == Kind::kDigit ? seen[c] : 0;
    space += table.kind[c] == Kind::kSpace ? seen[c] : 0;
    other += table.kind[c] == Kind::kOther ? seen[c] : 0;
    upper += table.lower[c] != c ? seen[c] : 0;
    high += c >= 128 ? seen[c] : 0;
  }
  std::size_t leading = 0, trailing = 0;
  while (leading < text.size() &&
         table.kind[static_cast<unsigned char>(text[leading])] == Kind::kSpace) {
    ++leading;
  }
  while (trailing < text.size() &&
         table.kind[static_cast<unsigned char>(text[text.size() - 1 - trailing])] == Kind::kSpace) {
    ++trailing;
  }
  const float size = std::max<float>(1.0F, static_cast<float>(text.size()));
  const auto edge = [&](std::size_t at) {
    return text.empty() ? -1.0F : static_cast<float>(static_cast<unsigned char>(text[at]));
  };
  const std::size_t end = text.empty() ? 0 : text.size() - 1;
  return {
      log1p_of(text.size()),
      log1p_of(words),
      log1p_of(numbers),
      log1p_of(digits),
      log1p_of(seen['\n']),
      log1p_of(longest_line),
      static_cast<float>(digits) / size,
      static_cast<float>(upper) / size,
      static_cast<float>(space) / size,
      static_cast<float>(other) / size,
      static_cast<float>(high) / size,
      log1p_of(seen['?']),
      log1p_of(seen['.']),
      log1p_of(seen[',']),
      log1p_of(seen[':']),
      log1p_of(seen['(']),
      log1p_of(seen['['] + seen['{']),
      log1p_of(seen['"'] + seen['\'']),
      log1p_of(seen['`'] + seen['#']),
      log1p_of(seen['='] + seen['_']),
      log1p_of(leading),
      log1p_of(trailing),
      edge(std::min(leading, end)),
      edge(trailing > end ? 0 : end - trailing),
  };
}

}  // namespace goodput
