// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "large_vector.h"

namespace goodput {

// Hash of a block -> ID of the set of instances that hold it (never 0). Open addressing in 64
// shards, which grow and shrink one by one at different loads: no operation ever moves more than
// a 64th of the table.
//
// Memory: 16 bytes a place, at most 5 places a block once a shard has more than a few.
class BlockTable {
 public:
  struct Node {
    uint64_t hash = 0;
    uint32_t set = 0;  // 0: a free place
  };

  // The set of a block, 0 if no instance holds it.
  uint32_t find(uint64_t hash) const {
    const Shard& shard = shards_[hash >> kShift];
    for (std::size_t at = hash & shard.mask;; at = (at + 1) & shard.mask) {
      const Node& node = shard.nodes[at];
      if (node.hash == hash || node.set == 0) {
        return node.set;
      }
    }
  }

  // Where the set of a block is kept. A new block has set 0 and must be given another. Valid until
  // the next change of the table.
  uint32_t& place(uint64_t hash);

  // Forgets a block that is there.
  void erase(uint64_t hash);

  // Asks for the memory of a block that will be looked up soon.
  void prefetch(uint64_t hash) const {
    const Shard& shard = shards_[hash >> kShift];
    __builtin_prefetch(&shard.nodes[hash & shard.mask]);
  }

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const;

 private:
  static constexpr int kShift = 58;
  static constexpr std::size_t kShards = 64;

  struct Shard {
    LargeVector<Node> nodes = LargeVector<Node>(4);
    std::size_t mask = 3;
    std::size_t size = 0;
  };

  static void resize(Shard& shard, std::size_t places);

  std::array<Shard, kShards> shards_;
  std::size_t size_ = 0;
};

}  // namespace goodput
