// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "text_stats.h"

#include <algorithm>
#include <cstdint>

#include "small_logs.h"
#include "text_grams.h"

namespace goodput {

namespace {

// Lambdas without branches, since only such become vector code.
constexpr auto is_letter = [](uint8_t c) {
  return (static_cast<uint8_t>((c | 32) - 'a') < 26) | (c >= 128);
};
constexpr auto is_upper = [](uint8_t c) { return static_cast<uint8_t>(c - 'A') < 26; };
constexpr auto is_digit = [](uint8_t c) { return static_cast<uint8_t>(c - '0') < 10; };
constexpr auto is_blank = [](uint8_t c) { return (c <= ' ') | (c == 127); };
constexpr auto is_high = [](uint8_t c) { return c >= 128; };

// A window's bytes, with a blank before the first.
class Bytes {
 public:
  explicit Bytes(std::string_view text)
      : at_(reinterpret_cast<const uint8_t*>(text.data())), size_(text.size()) {}

  // How many match. One loop per class, in blocks that a byte can count: a compiler makes vector
  // code of it, which beats one look at each byte for all classes.
  template <typename Match>
  std::size_t count(Match match) const {
    std::size_t total = 0;
    for (std::size_t begin = 0; begin < size_; begin += kBlock) {
      total += in_block(begin, [match](const uint8_t* at) { return match(*at); });
    }
    return total;
  }

  std::size_t count_of(char wanted) const {
    return count([wanted](uint8_t c) { return c == static_cast<uint8_t>(wanted); });
  }

  // Runs of bytes that match.
  template <typename Match>
  std::size_t runs(Match match) const {
    if (size_ == 0) {
      return 0;
    }
    std::size_t total = match(at_[0]) ? 1 : 0;
    for (std::size_t begin = 1; begin < size_; begin += kBlock) {
      total +=
          in_block(begin, [match](const uint8_t* at) { return match(at[0]) & !match(at[-1]); });
    }
    return total;
  }

 private:
  static constexpr std::size_t kBlock = 240;

  template <typename Match>
  std::size_t in_block(std::size_t begin, Match match) const {
    const uint8_t* const at = at_ + begin;
    const std::size_t size = std::min(kBlock, size_ - begin);
    uint8_t found = 0;
    for (std::size_t i = 0; i < size; ++i) {
      found = static_cast<uint8_t>(found + (match(at + i) ? 1 : 0));
    }
    return found;
  }

  const uint8_t* at_;
  std::size_t size_;
};

struct Lines {
  std::size_t breaks = 0;
  std::size_t longest = 0;
};

Lines lines_of(std::string_view text) {
  Lines found;
  while (true) {
    const std::size_t end = text.find('\n');
    found.longest = std::max(found.longest, std::min(end, text.size()));
    if (end == std::string_view::npos) {
      return found;
    }
    ++found.breaks;
    text.remove_prefix(end + 1);
  }
}

// Blanks at an end, where a break is none.
bool is_edge(char c) { return is_blank(static_cast<uint8_t>(c)) && c != kTextBreak; }

}  // namespace

std::array<float, kTextStats> text_stats(std::string_view text) {
  const Bytes bytes(text);
  const Lines lines = lines_of(text);
  const std::size_t digits = bytes.count(is_digit);
  const std::size_t upper = bytes.count(is_upper);
  const std::size_t blank = bytes.count(is_blank);
  const std::size_t high = bytes.count(is_high);
  const std::size_t letters = bytes.count(is_letter);
  const auto leading =
      static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_edge) - text.begin());
  const auto trailing = static_cast<std::size_t>(
      std::find_if_not(text.rbegin(), text.rend(), is_edge) - text.rbegin());
  const float size = std::max<float>(1.0F, static_cast<float>(text.size()));
  const auto share = [size](std::size_t count) { return static_cast<float>(count) / size; };
  const auto edge = [&](std::size_t at) {
    return text.empty() ? -1.0F : static_cast<float>(static_cast<uint8_t>(text[at]));
  };
  const std::size_t end = text.empty() ? 0 : text.size() - 1;
  const auto two = [&bytes](char one, char other) {
    return log1p_of(bytes.count([one, other](uint8_t c) {
      return (c == static_cast<uint8_t>(one)) | (c == static_cast<uint8_t>(other));
    }));
  };
  return {
      log1p_of(text.size()),
      log1p_of(bytes.runs(is_letter)),
      log1p_of(bytes.runs(is_digit)),
      log1p_of(digits),
      log1p_of(lines.breaks),
      log1p_of(lines.longest),
      share(digits),
      share(upper),
      share(blank),
      share(text.size() - blank - letters - digits),
      share(high),
      log1p_of(bytes.count_of('?')),
      log1p_of(bytes.count_of('.')),
      log1p_of(bytes.count_of(',')),
      log1p_of(bytes.count_of(':')),
      log1p_of(bytes.count_of('(')),
      two('[', '{'),
      two('"', '\''),
      two('`', '#'),
      two('=', '_'),
      log1p_of(leading),
      log1p_of(trailing),
      edge(std::min(leading, end)),
      edge(trailing > end ? 0 : end - trailing),
  };
}

}  // namespace goodput
