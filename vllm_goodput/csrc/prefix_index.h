// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "prefix_lru.h"
#include "prefix_sets.h"
#include "prefix_table.h"

namespace goodput {

// Which instance holds how much of a prompt in its prefix cache.
//
// A prompt is a chain of block hashes, each of which covers the whole prefix up to the end of its
// block (block_hash.h). Every instance (slot) keeps the most recently used blocks up to its
// capacity; among blocks used at the same time the later ones of a chain go first, so that what is
// kept of a chain is a prefix of it, as in vLLM. Blocks that evict() removes from the middle leave
// a hole: a match ends there until the block is back.
//
// Cost: match() looks up a few blocks where few different lengths match, and each block of the
// longest match once at worst; insert(), extend() and evict() are linear in the blocks.
// Memory: about 60 bytes a block held, summed over the instances, of which none holds more than its
// capacity; at most 90, twice that where evict() makes every other block a hole; and slots() / 8
// bytes for each distinct set of two instances or more. What is freed is used again, and given back
// when an instance is cleared or removed (the entries) or the index is empty (the rest).
//
// Not thread-safe: its owner serialises all calls. Calls for a slot that is not there throw
// std::out_of_range.
class PrefixIndex {
 public:
  static constexpr int kMaxSlots = 4096;

  // Adds an instance that holds nothing. If it is there already, only its capacity changes; what is
  // too much is evicted. Throws std::out_of_range unless 0 <= slot < kMaxSlots.
  void add_instance(int slot, std::size_t capacity_blocks);
  // Forgets an instance. Does nothing if it is not there.
  void remove_instance(int slot);
  // Forgets what an instance holds.
  void clear_instance(int slot);
  bool has_instance(int slot) const;

  // A prompt was sent to the instance: its blocks become the most recently used. Of a chain longer
  // than the capacity only the beginning is kept.
  void insert(int slot, const uint64_t* hashes, std::size_t n);

  // As insert() of the chain that ends with the block `parent`, followed by these. If `parent` is
  // not held, they are kept but match only once it is.
  void extend(int slot, uint64_t parent, const uint64_t* hashes, std::size_t n);

  // These blocks are gone; those not held are ignored.
  void evict(int slot, const uint64_t* hashes, std::size_t n);

  // The length in blocks of the longest prefix that each instance holds without a hole.
  // out: [slots()]; 0 where there is no instance.
  void match(const uint64_t* hashes, std::size_t n, int32_t* out) const;

  // One more than the highest slot ever added.
  int slots() const { return static_cast<int>(caches_.size()); }
  // Blocks held, summed over the instances.
  std::size_t size() const { return size_; }
  // Blocks held by an instance, and its capacity.
  std::size_t held(int slot) const { return cache(slot).size(); }
  std::size_t capacity(int slot) const { return cache(slot).capacity(); }
  // Whether an instance holds a block, reachable or behind a hole.
  bool contains(int slot, uint64_t hash) const;
  // Distinct blocks held by any instance.
  std::size_t distinct() const { return table_.size(); }
  std::size_t memory_bytes() const;

 private:
  using Ref = BlockLru::Ref;

  const BlockLru& cache(int slot) const;
  BlockLru& cache(int slot);
  void append(int slot, BlockLru& lru, Ref last, const uint64_t* hashes, std::size_t n);
  Ref hold(int slot, BlockLru& lru, uint64_t hash, SlotSets::Id set, Ref before, Ref newer);
  void unset(int slot, uint64_t hash);
  void drop(int slot, BlockLru& lru, Ref entry);
  void note_holes(int slot, const BlockLru& lru);

  struct Cache {
    BlockLru lru;
    bool present = false;
  };

  std::vector<Cache> caches_;  // [slots]
  BlockTable table_;
  SlotSets sets_;
  std::array<uint64_t, kMaxSlots / 64> holes_{};  // slots whose chains may have holes
  std::size_t size_ = 0;
};

}  // namespace goodput
