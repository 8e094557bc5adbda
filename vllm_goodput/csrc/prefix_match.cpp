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
constexpr std::size_t kTogether = 16;

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
    Slots<W> ending;
    uint32_t before = SlotSets::kEmpty;  // the set of the block `low`, where it is known
    const bool all = scan(low + step, step, high, [&](std::size_t at, uint32_t set) {
      if (set != before || set == SlotSets::kEmpty) {
        split(slots, sets_.bits(set), ending);
        if (ending.active != 0) {
          search(low, at, ending);
        }
      }
      before = set;
      low = at;
      return slots.active != 0;
    });
    if (all) {
      search(low, high, slots);
    }
  }

  // Calls visit(position, set) for every `step`th block from `begin` until it returns false or the
  // next would be `end`, whether it never did. Looks up a few blocks at a time, so that the memory
  // of their places in the table, and then that of their sets, is on its way together.
  template <typename Visit>
  bool scan(std::size_t begin, std::size_t step, std::size_t end, Visit visit) const {
    std::array<uint32_t, kTogether> found;
    std::size_t asked = ask(begin, step, end);
    for (std::size_t at = begin; at < end;) {
      const std::size_t first = at;
      const std::size_t last = asked;
      std::size_t count = 0;
      for (; at < last; at += step) {
        found[count] = table_.find(hashes_[at]);
        sets_.template prefetch<W>(found[count]);
        ++count;
      }
      asked = ask(at, step, end);
      for (std::size_t i = 0; i < count; ++i) {
        if (!visit(first + i * step, found[i])) {
          return false;
        }
      }
    }
    return true;
  }

  // Asks for up to kTogether blocks' places in the table; returns the position behind them.
  GOODPUT_PREFETCHES std::size_t ask(std::size_t at, std::size_t step, std::size_t end) const {
    for (std::size_t i = 0; i < kTogether && at < end; ++i) {
      table_.prefetch(hashes_[at]);
      at += step;
    }
    return at;
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
    scan(1, 1, longest, [&](std::size_t at, uint32_t set) {
      split(slots, sets_.bits(set), ending);
      for_each(ending, [&](std::size_t slot) {
        out_[slot] = std::min(out_[slot], static_cast<int32_t>(at));
      });
      return slots.active != 0;
    });
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
