// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "large_array.h"

namespace goodput {

// Interned sets of slots (small ints): equal sets have equal IDs, so that the many blocks which the
// same instances hold cost four bytes each, and comparing two of them is comparing two integers.
// Sets are counted: whoever stores an ID holds one reference to it.
//
// Memory: `width()` words for each distinct set alive at once, at most one per block held by two
// instances or more, plus one per instance.
class SlotSets {
 public:
  using Id = uint32_t;
  static constexpr Id kEmpty = 0;

  SlotSets();

  // Makes room for slots 0 .. count-1.
  void widen(int count);

  // 64-bit words of a set: a power of two.
  std::size_t width() const { return width_; }

  const uint64_t* bits(Id id) const { return bits_.data() + std::size_t{id} * width_; }
  bool contains(Id id, int slot) const { return (bits(id)[slot >> 6] >> (slot & 63)) & 1; }

  // Asks for the memory of a set that will be looked at soon; Width == width().
  template <std::size_t Width>
  GOODPUT_PREFETCHES void prefetch(Id id) const {
    for (std::size_t i = 0; i < Width; i += kLine) {
      __builtin_prefetch(bits(id) + i);
    }
  }

  // The set with `slot` added, or removed. The caller's reference to `id` becomes one to the
  // result. Require slot < 64 * width(), and that `slot` is not in the set, or is in it.
  Id with(Id id, int slot) { return change(id, slot, with_); }
  Id without(Id id, int slot) { return change(id, slot, without_); }

  // Distinct sets, the empty one not counted.
  std::size_t size() const { return live_; }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kLine = 8;  // words of a cache line

  // The last change made: the blocks of a chain mostly change from the same set to the same set.
  struct Change {
    Id from = kEmpty;
    Id to = kEmpty;
    int slot = -1;
  };

  Id change(Id id, int slot, Change& last);
  Id intern(Id id, int slot);
  Id create(Id id, int slot, uint64_t key);
  void release(Id id);
  bool equals_flipped(Id candidate, Id id, int slot) const;
  void rehash(std::size_t size);
  void forget(std::size_t position);

  std::size_t width_ = 1;
  std::size_t live_ = 0;
  LargeArray<uint64_t> bits_;     // [room for ids * width_]
  std::vector<uint64_t> keys_;    // [ids]: the XOR of the members' random numbers
  std::vector<uint32_t> counts_;  // [ids]: references
  std::vector<Id> free_;
  std::vector<Id> table_;  // open addressing by key; kEmpty where free
  Change with_;
  Change without_;
};

}  // namespace goodput
