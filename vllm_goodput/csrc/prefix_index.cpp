// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "prefix_index.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "prefix_match.h"

namespace goodput {

namespace {

constexpr std::size_t kAhead = 12;  // blocks whose memory is asked for in advance

// Goes ahead of the blocks that a full instance drops for others, the oldest ones, and asks for
// their memory: first for where they are, half the way later for what is there. What it meets may
// be in use again or gone by the time; it only reads.
class Dropping {
 public:
  Dropping(const BlockTable& table, const BlockLru& lru)
      : table_(table), lru_(lru), far_(lru.full() ? lru.oldest() : BlockLru::kNone), near_(far_) {}

  GOODPUT_PREFETCHES void step() {
    if (far_ != BlockLru::kNone) {
      table_.prefetch(lru_.hash(far_));
      lru_.prefetch_bucket(lru_.hash(far_));
      far_ = lru_.newer(far_);
      ++steps_;
    }
    if (steps_ > kAhead / 2 && near_ != BlockLru::kNone) {
      lru_.prefetch_entry(lru_.hash(near_));
      near_ = lru_.newer(near_);
    }
  }

 private:
  const BlockTable& table_;
  const BlockLru& lru_;
  BlockLru::Ref far_;
  BlockLru::Ref near_;
  std::size_t steps_ = 0;
};

}  // namespace

void PrefixIndex::add_instance(int slot, std::size_t capacity_blocks) {
  if (slot < 0 || slot >= kMaxSlots) {
    throw std::out_of_range("slot must be in 0.." + std::to_string(kMaxSlots - 1) + ", got " +
                            std::to_string(slot));
  }
  const auto index = static_cast<std::size_t>(slot);
  if (index >= caches_.size()) {
    sets_.widen(slot + 1);
    caches_.resize(index + 1);
  }
  caches_[index].present = true;
  BlockLru& lru = caches_[index].lru;
  lru.set_capacity(capacity_blocks);
  while (lru.size() > lru.capacity()) {
    drop(slot, lru, lru.oldest());
  }
  note_holes(slot, lru);
}

void PrefixIndex::remove_instance(int slot) {
  if (has_instance(slot)) {
    clear_instance(slot);
    caches_[static_cast<std::size_t>(slot)].present = false;
  }
}

void PrefixIndex::clear_instance(int slot) {
  BlockLru& lru = cache(slot);
  for (Ref entry = lru.newest(); entry != BlockLru::kNone; entry = lru.older(entry)) {
    unset(slot, lru.hash(entry));
  }
  lru.clear();
  note_holes(slot, lru);
}

bool PrefixIndex::has_instance(int slot) const {
  return slot >= 0 && slot < slots() && caches_[static_cast<std::size_t>(slot)].present;
}

void PrefixIndex::insert(int slot, const uint64_t* hashes, std::size_t n) {
  BlockLru& lru = cache(slot);
  append(slot, lru, BlockLru::kNone, hashes, std::min(n, lru.capacity()));
  note_holes(slot, lru);
}

void PrefixIndex::extend(int slot, uint64_t parent, const uint64_t* hashes, std::size_t n) {
  BlockLru& lru = cache(slot);
  const Ref last = lru.find(parent);
  const bool reachable = last != BlockLru::kNone && lru.held(last);
  std::size_t touched = 0;
  if (reachable) {
    for (Ref at = last; at != BlockLru::kNone && touched < lru.size(); at = lru.before(at)) {
      lru.move(at, BlockLru::kNone);
      ++touched;
    }
  }
  n = std::min(n, lru.capacity() - touched);
  if (n == 0) {
    return;
  }
  if (reachable) {
    append(slot, lru, last, hashes, n);
  } else if (contains(slot, hashes[0])) {
    const Ref first = lru.find(hashes[0]);
    lru.move(first, BlockLru::kNone);
    append(slot, lru, first, hashes + 1, n - 1);
  } else {
    if (lru.full()) {
      drop(slot, lru, lru.oldest());
    }
    Ref ghost = lru.find(parent);  // only now: the last block behind it may have been dropped
    ghost = ghost == BlockLru::kNone ? lru.add_ghost(parent) : ghost;
    const Ref first = hold(slot, lru, hashes[0], table_.find(hashes[0]), ghost, BlockLru::kNone);
    append(slot, lru, first, hashes + 1, n - 1);
  }
  note_holes(slot, lru);
}

void PrefixIndex::evict(int slot, const uint64_t* hashes, std::size_t n) {
  BlockLru& lru = cache(slot);
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      table_.prefetch(hashes[i + kAhead]);
    }
    if (sets_.contains(table_.find(hashes[i]), slot)) {
      drop(slot, lru, lru.find(hashes[i]));
    }
  }
  note_holes(slot, lru);
}

void PrefixIndex::match(const uint64_t* hashes, std::size_t n, int32_t* out) const {
  std::fill_n(out, caches_.size(), 0);
  match_prefix(table_, sets_, holes_.data(), {hashes, std::min<std::size_t>(n, INT32_MAX)}, out);
}

bool PrefixIndex::contains(int slot, uint64_t hash) const {
  return has_instance(slot) && sets_.contains(table_.find(hash), slot);
}

std::size_t PrefixIndex::memory_bytes() const {
  std::size_t bytes = sizeof(*this) + table_.memory_bytes() + sets_.memory_bytes();
  for (const Cache& cache : caches_) {
    bytes += cache.lru.memory_bytes();
  }
  return bytes;
}

const BlockLru& PrefixIndex::cache(int slot) const {
  if (!has_instance(slot)) {
    throw std::out_of_range("no instance at slot " + std::to_string(slot));
  }
  return caches_[static_cast<std::size_t>(slot)].lru;
}

BlockLru& PrefixIndex::cache(int slot) {
  return const_cast<BlockLru&>(static_cast<const PrefixIndex*>(this)->cache(slot));
}

// Holds a chain's blocks behind its held block `last` (kNone: from its beginning), each one place
// less recent than the one before. At most capacity - (blocks up to `last`), so that what is
// dropped for them is none of the chain.
void PrefixIndex::append(int slot, BlockLru& lru, Ref last, const uint64_t* hashes, std::size_t n) {
  Dropping dropping(table_, lru);
  for (std::size_t i = 0; i < std::min(n, kAhead); ++i) {
    table_.prefetch(hashes[i]);
    lru.prefetch_bucket(hashes[i]);
    dropping.step();
  }
  Ref next = BlockLru::kNone;  // a good guess at where the following block is
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      table_.prefetch(hashes[i + kAhead]);
      lru.prefetch_bucket(hashes[i + kAhead]);
    }
    const SlotSets::Id set = table_.find(hashes[i]);
    if (!sets_.contains(set, slot)) {
      if (lru.full()) {
        drop(slot, lru, lru.oldest());
        dropping.step();
      }
      last = hold(slot, lru, hashes[i], set, last, last);
      next = BlockLru::kNone;
      continue;
    }
    const bool guessed = next != BlockLru::kNone && lru.hash(next) == hashes[i];
    const Ref entry = guessed ? next : lru.find(hashes[i]);
    next = lru.older(entry);
    lru.move(entry, last);
    last = entry;
  }
}

// Holds a block that the instance does not hold; set: that of the instances which do.
PrefixIndex::Ref PrefixIndex::hold(int slot, BlockLru& lru, uint64_t hash, SlotSets::Id set,
                                   Ref before, Ref newer) {
  const Ref entry = lru.add(hash, before, newer);
  if (set == SlotSets::kEmpty) {
    table_.add(hash, sets_.with(set, slot));
  } else {
    table_.update(hash, [&](SlotSets::Id id) { return sets_.with(id, slot); });
  }
  ++size_;
  return entry;
}

// The instance no longer holds a block that it held.
void PrefixIndex::unset(int slot, uint64_t hash) {
  table_.update(hash, [&](SlotSets::Id id) { return sets_.without(id, slot); });
  --size_;
}

void PrefixIndex::drop(int slot, BlockLru& lru, Ref entry) {
  const uint64_t hash = lru.hash(entry);
  lru.remove(entry);
  unset(slot, hash);
}

void PrefixIndex::note_holes(int slot, const BlockLru& lru) {
  uint64_t& word = holes_[static_cast<std::size_t>(slot) >> 6];
  const uint64_t bit = uint64_t{1} << (slot & 63);
  word = lru.has_holes() ? word | bit : word & ~bit;
}

}  // namespace goodput
