// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "prefix_table.h"

namespace goodput {

namespace {

constexpr std::size_t kLeastPlaces = 4;

// Places taken at which a shard doubles: 11/20 to 16/20 of them, another share for each shard, so
// that shards which fill alike do not all grow at the same time.
std::size_t limit(std::size_t places, std::size_t shard) {
  return places * (704 + 5 * shard) / 1280;
}

}  // namespace

uint32_t& BlockTable::place(uint64_t hash) {
  const std::size_t number = hash >> kShift;
  Shard& shard = shards_[number];
  std::size_t at = hash & shard.mask;
  while (shard.nodes[at].set != 0) {
    if (shard.nodes[at].hash == hash) {
      return shard.nodes[at].set;
    }
    at = (at + 1) & shard.mask;
  }
  if (shard.size + 1 > limit(shard.nodes.size(), number)) {
    resize(shard, 2 * shard.nodes.size());
    at = hash & shard.mask;
    while (shard.nodes[at].set != 0) {
      at = (at + 1) & shard.mask;
    }
  }
  shard.nodes[at].hash = hash;
  ++shard.size;
  ++size_;
  return shard.nodes[at].set;
}

void BlockTable::erase(uint64_t hash) {
  const std::size_t number = hash >> kShift;
  Shard& shard = shards_[number];
  std::size_t hole = hash & shard.mask;
  while (shard.nodes[hole].hash != hash) {
    hole = (hole + 1) & shard.mask;
  }
  for (std::size_t at = (hole + 1) & shard.mask; shard.nodes[at].set != 0;
       at = (at + 1) & shard.mask) {
    const std::size_t home = shard.nodes[at].hash & shard.mask;
    if (((at - home) & shard.mask) >= ((at - hole) & shard.mask)) {
      shard.nodes[hole] = shard.nodes[at];
      hole = at;
    }
  }
  shard.nodes[hole] = Node{};
  --shard.size;
  --size_;
  if (shard.nodes.size() > kLeastPlaces && 8 * shard.size < 3 * limit(shard.nodes.size(), number)) {
    resize(shard, shard.nodes.size() / 2);
  }
}

void BlockTable::resize(Shard& shard, std::size_t places) {
  LargeVector<Node> nodes(places);
  const std::size_t mask = places - 1;
  for (const Node& node : shard.nodes) {
    if (node.set != 0) {
      std::size_t at = node.hash & mask;
      while (nodes[at].set != 0) {
        at = (at + 1) & mask;
      }
      nodes[at] = node;
    }
  }
  shard.nodes.swap(nodes);
  shard.mask = mask;
}

std::size_t BlockTable::memory_bytes() const {
  std::size_t bytes = sizeof(*this);
  for (const Shard& shard : shards_) {
    bytes += shard.nodes.capacity() * sizeof(Node);
  }
  return bytes;
}

}  // namespace goodput
