// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "large_array.h"

namespace goodput {

// The blocks that one instance holds, from the most to the least recently used, each with the block
// before it in its chain.
//
// A block that is removed while a block behind it stays leaves a ghost, so that it is known whether
// this instance's chains have holes. A ghost keeps nothing but the number of blocks behind it:
// there are never more ghosts than blocks.
//
// Memory: 32 bytes an entry plus 5 to 11 for finding it, twice that at most where all have ghosts.
class BlockLru {
 public:
  using Ref = uint32_t;
  static constexpr Ref kNone = UINT32_MAX;

  explicit BlockLru(std::size_t capacity = 0);

  std::size_t capacity() const { return capacity_; }
  void set_capacity(std::size_t capacity) { capacity_ = capacity; }
  std::size_t size() const { return size_; }
  bool full() const { return size_ >= capacity_; }
  // Whether a block may be held without the one before it.
  bool has_holes() const { return ghosts_ > 0; }

  // The entry of a block, held or ghost; kNone if there is neither.
  Ref find(uint64_t hash) const;
  bool held(Ref entry) const { return !entries_[entry].ghost; }
  uint64_t hash(Ref entry) const { return entries_[entry].hash; }
  // The block before it in its chain, where that is held; kNone for a first block and behind a
  // hole.
  Ref before(Ref entry) const;
  Ref newest() const { return head_; }
  Ref oldest() const { return tail_; }
  // The next less, and the next more recently used one.
  Ref older(Ref entry) const { return entries_[entry].next; }
  Ref newer(Ref entry) const { return entries_[entry].prev; }

  // Ask for the memory that tells where a block's entry is; and, when that is there, for the
  // entry's.
  GOODPUT_PREFETCHES void prefetch_bucket(uint64_t hash) const {
    __builtin_prefetch(&buckets_[bucket(hash)]);
  }
  GOODPUT_PREFETCHES void prefetch_entry(uint64_t hash) const {
    const Ref first = buckets_[bucket(hash)];
    if (first != kNone) {
      __builtin_prefetch(&entries_[first]);
    }
  }

  // Adds a block that is not held, one place less recent than `newer` (kNone: the most recent).
  // `before`: the entry, held or ghost, of the block before it; kNone for the first of a chain.
  Ref add(uint64_t hash, Ref before, Ref newer);

  // A ghost for a block that is not held and will be named as the one before another.
  Ref add_ghost(uint64_t hash);

  // Moves a held block to one place behind `newer` (kNone: to the front).
  void move(Ref entry, Ref newer);

  // Removes a held block; it leaves a ghost while blocks behind it are held.
  void remove(Ref entry);

  void clear();
  std::size_t memory_bytes() const;

 private:
  struct Entry {
    uint64_t hash;
    Ref prev;         // more recent
    Ref next;         // less recent
    Ref chain;        // next entry of the same bucket, or free entry
    Ref before;       // the block before it; kNone for a first block and for ghosts
    uint32_t behind;  // held blocks whose `before` is this entry
    bool ghost;
  };

  Ref take(uint64_t hash);
  void give_back(Ref entry);
  void link(Ref entry, Ref newer);
  void unlink(Ref entry);
  void leave(Ref before);
  std::size_t bucket(uint64_t hash) const { return (hash >> 24) & (buckets_.size() - 1); }
  void grow_buckets();

  std::size_t capacity_;
  std::size_t size_ = 0;
  std::size_t ghosts_ = 0;
  Ref head_ = kNone;
  Ref tail_ = kNone;
  Ref free_ = kNone;
  std::vector<Entry> entries_;
  std::vector<Ref> buckets_;
};

}  // namespace goodput
