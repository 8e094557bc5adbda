// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "prefix_match.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace goodput {

namespace {

// Parts into which a stretch of blocks is cut: long stretches into many, whose memory is asked for
// at once; where few slots are left into few.
constexpr std::size_t kParts = 32;
constexpr std::size_t kFewParts = 6;
constexpr std::size_t kFewSlots = 4;
constexpr std::size_t kAhead = 8;

// A set of slots in W words, of which only those in `active` are read: where few slots are left,
// few words are touched.
template <std::size_t W>
struct Slots {
  uint64_t words[W];
  uint64_t active = 0;
};

template <std::size_t W>
bool few(const Slots<W>& slots) {
  std::size_t count = 0;
  for (uint64_t active = slots.active; active != 0; active &= active - 1) {
    for (uint64_t word = slots.words[__builtin_ctzll(active)]; word != 0; word &= word - 1) {
      if (++count > kFewSlots) {
        return false;
      }
    }
  }
  return true;
}

template <std::size_t W, typename Act>
void for_each(const Slots<W>& slots, Act act) {
  for (uint64_t active = slots.active; active != 0; active &= active - 1) {
    const auto i = static_cast<std::size_t>(__builtin_ctzll(active));
    for (uint64_t word = slots.words[i]; word != 0; word &= word - 1) {
      act(64 * i + static_cast<std::size_t>(__builtin_ctzll(word)));
    }
  }
}

template <std::size_t W>
Slots<W> slots_of(const uint64_t* words) {
  Slots<W> slots;
  for (std::size_t i = 0; i < W; ++i) {
    slots.words[i] = words[i];
    slots.active |= uint64_t{words[i] != 0} << i;
  }
  return slots;
}

// Takes the slots outside `set` from `slots` into `out`.
template <std::size_t W>
void split(Slots<W>& slots, const uint64_t* set, Slots<W>& out) {
  out.active = 0;
  for (uint64_t active = slots.active; active != 0; active &= active - 1) {
    const auto i = static_cast<std::size_t>(__builtin_ctzll(active));
    const uint64_t left = slots.words[i] & set[i];
    const uint64_t gone = slots.words[i] & ~set[i];
    slots.words[i] = left;
    slots.active &= ~(uint64_t{left == 0} << i);
    out.words[i] = gone;
    out.active |= uint64_t{gone != 0} << i;
  }
}

// Looks up every `step`th block of [begin, end) in turn. Memory is asked for in advance: that of a
// block's place in the table 2 * kAhead blocks before it is needed, that of its set kAhead before.
class Sets {
 public:
  Sets(const BlockTable& table, const SlotSets& sets, const uint64_t* hashes, std::size_t begin,
       std::size_t step, std::size_t end)
      : table_(table), sets_(sets), hashes_(hashes), asked_(begin), step_(step), end_(end) {
    found_at_ = begin;
    for (std::size_t i = 0; i < kAhead; ++i) {
      ask();
    }
    for (std::size_t i = 0; i < kAhead; ++i) {
      ask();
      find();
    }
  }

  uint32_t next() {
    const uint32_t set = found_[turn_ % kAhead];
    ask();
    find();
    return set;
  }

 private:
  GOODPUT_PREFETCHES void ask() {
    if (asked_ < end_) {
      table_.prefetch(hashes_[asked_]);
      asked_ += step_;
    }
  }

  GOODPUT_PREFETCHES void find() {
    if (found_at_ < end_) {
      const uint32_t set = table_.find(hashes_[found_at_]);
      sets_.prefetch(set);
      found_[turn_ % kAhead] = set;
      found_at_ += step_;
    }
    ++turn_;
  }

  const BlockTable& table_;
  const SlotSets& sets_;
  const uint64_t* hashes_;
  std::size_t asked_;
  std::size_t found_at_;
  std::size_t step_;
  std::size_t end_;
  std::size_t turn_ = 0;
  std::array<uint32_t, kAhead> found_;
};

template <std::size_t W>
class Matcher {
 public:
  Matcher(const BlockTable& table, const SlotSets& sets, Chain chain, int32_t* out)
      : table_(table), sets_(sets), hashes_(chain.hashes), n_(chain.n), out_(out) {}

  void run(const uint64_t* holes) {
    const uint32_t first = table_.find(hashes_[0]);
    if (first == SlotSets::kEmpty) {
      return;
    }
    Slots<W> slots = slots_of<W>(sets_.bits(first));
    const Slots<W> all = slots;
    Slots<W> shorter;
    split(slots, sets_.bits(table_.find(hashes_[n_ - 1])), shorter);
    assign(slots, n_);
    if (shorter.active != 0) {
      search(0, n_ - 1, shorter);
    }
    check(all, holes);
  }

 private:
  // The slots hold block `low` and not block `high`: finds where each one's blocks end, provided
  // that they have no holes.
  void search(std::size_t low, std::size_t high, Slots<W>& slots) {
    const std::size_t length = high - low;
    if (length == 1) {
      assign(slots, high);
      return;
    }
    const std::size_t step = step_of(length, slots);
    Sets sets(table_, sets_, hashes_, low + step, step, high);
    Slots<W> ending;
    uint32_t before = SlotSets::kEmpty;  // the set of the part's first block, where it is known
    for (std::size_t at = low + step; at < high; at += step) {
      const uint32_t set = sets.next();
      if (set == before && set != SlotSets::kEmpty) {
        low = at;
        continue;
      }
      split(slots, sets_.bits(set), ending);
      if (ending.active != 0) {
        search(low, at, ending);
        if (slots.active == 0) {
          return;
        }
      }
      before = set;
      low = at;
    }
    search(low, high, slots);
  }

  static std::size_t step_of(std::size_t length, const Slots<W>& slots) {
    if (length > kParts) {
      return (length + kParts - 1) / kParts;
    }
    return few(slots) ? (length + kFewParts - 1) / kFewParts : 1;
  }

  void assign(const Slots<W>& slots, std::size_t length) {
    for_each(slots, [&](std::size_t slot) { out_[slot] = static_cast<int32_t>(length); });
  }

  // The search found an end of the blocks of every slot, but one with holes may have an earlier
  // one.
  void check(const Slots<W>& all, const uint64_t* holes) {
    Slots<W> slots = all;
    Slots<W> ending;
    split(slots, holes, ending);
    std::size_t longest = 0;
    for_each(slots, [&](std::size_t slot) {
      longest = std::max(longest, static_cast<std::size_t>(out_[slot]));
    });
    Sets sets(table_, sets_, hashes_, 1, 1, longest);
    for (std::size_t at = 1; at < longest; ++at) {
      split(slots, sets_.bits(sets.next()), ending);
      for_each(ending, [&](std::size_t slot) {
        out_[slot] = std::min(out_[slot], static_cast<int32_t>(at));
      });
    }
  }

  const BlockTable& table_;
  const SlotSets& sets_;
  const uint64_t* hashes_;
  std::size_t n_;
  int32_t* out_;
};

template <std::size_t W>
void run(const BlockTable& table, const SlotSets& sets, const uint64_t* holes, Chain chain,
         int32_t* out) {
  Matcher<W>(table, sets, chain, out).run(holes);
}

}  // namespace

void match_prefix(const BlockTable& table, const SlotSets& sets, const uint64_t* holes, Chain chain,
                  int32_t* out) {
  if (chain.n == 0) {
    return;
  }
  switch (sets.width()) {
    case 1:
      return run<1>(table, sets, holes, chain, out);
    case 2:
      return run<2>(table, sets, holes, chain, out);
    case 4:
      return run<4>(table, sets, holes, chain, out);
    case 8:
      return run<8>(table, sets, holes, chain, out);
    case 16:
      return run<16>(table, sets, holes, chain, out);
    case 32:
      return run<32>(table, sets, holes, chain, out);
    case 64:
      return run<64>(table, sets, holes, chain, out);
    default:
      throw std::logic_error("prefix index: unexpected width of sets");
  }
}

}  // namespace goodput
