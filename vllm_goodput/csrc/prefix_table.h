// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "large_array.h"

namespace goodput {

// Hash of a block -> ID of the set of instances that hold it (never 0).
//
// Linear hashing (W. Litwin, VLDB 1980): buckets of one cache line are split and merged one at a
// time, so that the table follows its contents without ever being moved as a whole. Blocks that
// find no place in their bucket go into a chain of further ones.
//
// Memory: 64 bytes for 2.75 blocks, for 1.6 after many were forgotten; and 64 for one to five
// blocks that overflow, about every tenth; those are used again, and given back when the table is
// empty.
class BlockTable {
 public:
  BlockTable();

  // The set of a block, 0 if no instance holds it.
  uint32_t find(uint64_t hash) const {
    const Bucket* at = &home(hash);
    for (;;) {
      const unsigned found = places(*at, hash);
      if (found != 0) {
        return at->sets[__builtin_ctz(found)];
      }
      if (at->more == 0) {
        return 0;
      }
      at = &overflow_[at->more];
    }
  }

  // Adds a block that is not there; set != 0.
  void add(uint64_t hash, uint32_t set);

  // Gives a block that is there the set `change(its set)`; it is forgotten if that is 0.
  template <typename Change>
  void update(uint64_t hash, Change change) {
    Bucket* before = nullptr;
    Bucket* at = &bucket(number(hash));
    unsigned found = places(*at, hash);
    while (found == 0) {
      before = at;
      at = &overflow_[at->more];
      found = places(*at, hash);
    }
    uint32_t& set = at->sets[__builtin_ctz(found)];
    set = change(set);
    if (set == 0) {
      close(before, at, static_cast<std::size_t>(__builtin_ctz(found)));
    }
  }

  // Asks for the memory of a block that will be looked up soon.
  GOODPUT_PREFETCHES void prefetch(uint64_t hash) const { __builtin_prefetch(&home(hash)); }

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kPlaces = 5;
  static constexpr std::size_t kFirst = 64;  // buckets of the first segment, a power of two

  // Places are taken from the front, and a further bucket only when all are.
  struct alignas(64) Bucket {
    uint64_t hashes[kPlaces];
    uint32_t sets[kPlaces];  // 0: a free place
    uint32_t more;           // bucket in overflow_, 0: none
  };

  // Buckets 0 .. round_ + split_ - 1 exist; those before split_ have been split in this round.
  std::size_t number(uint64_t hash) const {
    const std::size_t low = hash & (round_ - 1);
    return low < split_ ? hash & (2 * round_ - 1) : low;
  }
  // Segment 0 has the first kFirst buckets; each further one doubles their number.
  const Bucket& bucket(std::size_t number) const {
    if (number < kFirst) {
      return segments_[0][number];
    }
    const auto top = static_cast<std::size_t>(63 - __builtin_clzll(number));
    return segments_[top - kFirstBits + 1][number - (std::size_t{1} << top)];
  }
  Bucket& bucket(std::size_t number) {
    return const_cast<Bucket&>(static_cast<const BlockTable*>(this)->bucket(number));
  }
  const Bucket& home(uint64_t hash) const { return bucket(number(hash)); }

  // Bit i: place i has this hash. Free places keep old ones, but come after all taken ones: the
  // lowest bit tells of the block itself if it is there.
  static unsigned places(const Bucket& bucket, uint64_t hash) {
    unsigned found = 0;
    for (std::size_t i = 0; i < kPlaces; ++i) {
      found |= static_cast<unsigned>(bucket.hashes[i] == hash) << i;
    }
    return found;
  }

  void grow();
  void shrink();
  void append(Bucket& bucket, uint64_t hash, uint32_t set);
  void close(Bucket* before, Bucket* at, std::size_t place);
  void take_all(Bucket& bucket);
  uint32_t take_overflow();

  static constexpr std::size_t kFirstBits = 6;
  static_assert(kFirst == std::size_t{1} << kFirstBits);

  std::array<LargeArray<Bucket>, 48> segments_;
  std::size_t round_ = kFirst;
  std::size_t split_ = 0;
  std::size_t size_ = 0;
  LargeArray<Bucket> overflow_;  // the first is not used
  std::size_t overflow_used_ = 1;
  std::vector<uint32_t> overflow_free_;
  struct Node {
    uint64_t hash;
    uint32_t set;
  };
  std::vector<Node> moving_;
};

}  // namespace goodput
