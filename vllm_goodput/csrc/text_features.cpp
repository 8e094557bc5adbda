// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "text_features.h"

#include <algorithm>
#include <cmath>

#include "block_hash.h"

namespace goodput {

namespace {

enum class Kind : unsigned char { kSpace, kLetter, kDigit, kOther, kBreak };

// What text_stats counts.
enum Class : unsigned char {
  kBlank,
  kNewline,
  kLower,
  kUpper,
  kHigh,
  kNumeral,
  kQuestion,
  kStop,
  kComma,
  kColon,
  kParen,
  kBracket,
  kQuote,
  kMark,
  kEqual,
  kSymbol,
  kClasses,
};

Class class_of(int c) {
  if (c >= 128) return kHigh;
  if (c >= 'a' && c <= 'z') return kLower;
  if (c >= 'A' && c <= 'Z') return kUpper;
  if (c >= '0' && c <= '9') return kNumeral;
  switch (c) {
    case '\n':
      return kNewline;
    case '?':
      return kQuestion;
    case '.':
      return kStop;
    case ',':
      return kComma;
    case ':':
      return kColon;
    case '(':
      return kParen;
    case '[':
    case '{':
      return kBracket;
    case '"':
    case '\'':
      return kQuote;
    case '`':
    case '#':
      return kMark;
    case '=':
    case '_':
      return kEqual;
    default:
      return c > ' ' && c != 127 ? kSymbol : kBlank;
  }
}

Kind kind_of(int c) {
  if (c == kTextBreak) return Kind::kBreak;
  switch (class_of(c)) {
    case kBlank:
    case kNewline:
      return Kind::kSpace;
    case kLower:
    case kUpper:
    case kHigh:
      return Kind::kLetter;
    case kNumeral:
      return Kind::kDigit;
    default:
      return Kind::kOther;
  }
}

struct Tables {
  std::array<Kind, 256> kind{};
  std::array<unsigned char, 256> lower{};
  std::array<Class, 256> group{};

  Tables() {
    for (int c = 0; c < 256; ++c) {
      kind[c] = kind_of(c);
      group[c] = class_of(c);
      lower[c] = static_cast<unsigned char>(group[c] == kUpper ? c + 32 : c);
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

// Most counts are small, and log1p is most of the work on them.
struct Logs {
  std::array<float, 256> small{};

  Logs() {
    for (std::size_t i = 0; i < small.size(); ++i) {
      small[i] = std::log1p(static_cast<float>(i));
    }
  }
};

float log1p_of(std::size_t count) {
  static const Logs logs;
  return count < logs.small.size() ? logs.small[count] : std::log1p(static_cast<float>(count));
}

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

std::array<float, kTextStats> text_stats(std::string_view text) {
  const Tables& table = tables();
  // Two tables in turn: incrementing the same count twice in a row would wait for the store.
  std::array<std::array<uint32_t, kClasses>, 2> counts{};
  std::size_t words = 0, numbers = 0, longest_line = 0, line_start = 0;
  Kind previous = Kind::kSpace;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const Kind kind = table.kind[byte];
    ++counts[i & 1][table.group[byte]];
    const bool starts = kind != previous;
    words += starts & (kind == Kind::kLetter);
    numbers += starts & (kind == Kind::kDigit);
    if (byte == '\n') {
      longest_line = std::max(longest_line, i - line_start);
      line_start = i + 1;
    }
    previous = kind;
  }
  longest_line = std::max(longest_line, text.size() - line_start);
  const auto seen = [&counts](Class group) {
    return std::size_t{counts[0][group]} + counts[1][group];
  };
  std::size_t symbols = 0;
  for (int group = kQuestion; group <= kSymbol; ++group) {
    symbols += seen(static_cast<Class>(group));
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
  const auto share = [size](std::size_t count) { return static_cast<float>(count) / size; };
  const auto edge = [&](std::size_t at) {
    return text.empty() ? -1.0F : static_cast<float>(static_cast<unsigned char>(text[at]));
  };
  const std::size_t end = text.empty() ? 0 : text.size() - 1;
  return {
      log1p_of(text.size()),
      log1p_of(words),
      log1p_of(numbers),
      log1p_of(seen(kNumeral)),
      log1p_of(seen(kNewline)),
      log1p_of(longest_line),
      share(seen(kNumeral)),
      share(seen(kUpper)),
      share(seen(kBlank) + seen(kNewline)),
      share(symbols),
      share(seen(kHigh)),
      log1p_of(seen(kQuestion)),
      log1p_of(seen(kStop)),
      log1p_of(seen(kComma)),
      log1p_of(seen(kColon)),
      log1p_of(seen(kParen)),
      log1p_of(seen(kBracket)),
      log1p_of(seen(kQuote)),
      log1p_of(seen(kMark)),
      log1p_of(seen(kEqual)),
      log1p_of(leading),
      log1p_of(trailing),
      edge(std::min(leading, end)),
      edge(trailing > end ? 0 : end - trailing),
  };
}

}  // namespace goodput
