// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "prefix_table.h"

#include <algorithm>
#include <stdexcept>

namespace goodput {

namespace {

// Blocks for 16 buckets above which one is split and below which two are merged.
constexpr std::size_t kMost = 44;
constexpr std::size_t kLeast = 26;
constexpr std::size_t kFirstOverflow = 16;

}  // namespace

BlockTable::BlockTable() : overflow_(kFirstOverflow) { segments_[0] = LargeArray<Bucket>(kFirst); }

void BlockTable::add(uint64_t hash, uint32_t set) {
  if (16 * (size_ + 1) > kMost * (round_ + split_)) {
    grow();
  }
  ++size_;
  append(bucket(number(hash)), hash, set);
}

// Closes the place of a forgotten block in the bucket `at`, behind `before` in its chain.
void BlockTable::close(Bucket* before, Bucket* at, std::size_t place) {
  // The chain's last block takes its place.
  Bucket* last = at;
  while (last->more != 0) {
    before = last;
    last = &overflow_[last->more];
  }
  at->sets[place] = 1;  // so that it counts as taken
  std::size_t taken = kPlaces;
  while (last->sets[taken - 1] == 0) {
    --taken;
  }
  at->hashes[place] = last->hashes[taken - 1];
  at->sets[place] = last->sets[taken - 1];
  last->sets[taken - 1] = 0;
  --size_;
  if (taken == 1 && before != nullptr) {
    overflow_free_.push_back(before->more);
    before->more = 0;
  }
  if (round_ + split_ > kFirst && 16 * size_ < kLeast * (round_ + split_)) {
    shrink();
  }
  if (size_ == 0) {
    overflow_ = LargeArray<Bucket>(kFirstOverflow);
    overflow_used_ = 1;
    overflow_free_ = {};
  }
}

std::size_t BlockTable::memory_bytes() const {
  return sizeof(*this) + (std::max(round_ + split_, kFirst) + overflow_.size()) * sizeof(Bucket) +
         overflow_free_.capacity() * sizeof(uint32_t);
}

// Splits one bucket into two.
void BlockTable::grow() {
  const std::size_t low = split_;
  const std::size_t high = round_ + split_;
  if (split_ == 0) {
    const auto top = static_cast<std::size_t>(63 - __builtin_clzll(high));
    segments_.at(top - kFirstBits + 1) = LargeArray<Bucket>(round_);
  }
  take_all(bucket(low));
  const std::size_t bit = round_;
  for (const Node& node : moving_) {
    append(bucket((node.hash & bit) != 0 ? high : low), node.hash, node.set);
  }
  if (++split_ == round_) {
    round_ *= 2;
    split_ = 0;
  }
}

// Merges the last bucket into the one that it was split from.
void BlockTable::shrink() {
  if (split_ == 0) {
    round_ /= 2;
    split_ = round_;
  }
  --split_;
  take_all(bucket(round_ + split_));
  for (const Node& node : moving_) {
    append(bucket(split_), node.hash, node.set);
  }
  if (split_ == 0) {
    const auto top = static_cast<std::size_t>(63 - __builtin_clzll(round_));
    segments_[top - kFirstBits + 1] = LargeArray<Bucket>();
  }
}

// Adds a block that is not there to a bucket's chain.
void BlockTable::append(Bucket& bucket, uint64_t hash, uint32_t set) {
  Bucket* at = &bucket;
  while (at->more != 0) {
    at = &overflow_[at->more];
  }
  std::size_t i = 0;
  while (i < kPlaces && at->sets[i] != 0) {
    ++i;
  }
  if (i == kPlaces) {
    const bool inside = at >= overflow_.data() && at < overflow_.data() + overflow_.size();
    const std::size_t position = inside ? static_cast<std::size_t>(at - overflow_.data()) : 0;
    const uint32_t more = take_overflow();  // may move overflow_
    at = inside ? &overflow_[position] : at;
    at->more = more;
    at = &overflow_[more];
    i = 0;
  }
  at->hashes[i] = hash;
  at->sets[i] = set;
}

// Moves all blocks of a bucket's chain to moving_.
void BlockTable::take_all(Bucket& bucket) {
  moving_.clear();
  Bucket* at = &bucket;
  for (;;) {
    for (std::size_t i = 0; i < kPlaces; ++i) {
      if (at->sets[i] != 0) {
        moving_.push_back({at->hashes[i], at->sets[i]});
        at->sets[i] = 0;
      }
    }
    const uint32_t more = at->more;
    at->more = 0;
    if (more == 0) {
      return;
    }
    overflow_free_.push_back(more);
    at = &overflow_[more];
  }
}

uint32_t BlockTable::take_overflow() {
  if (!overflow_free_.empty()) {
    const uint32_t taken = overflow_free_.back();
    overflow_free_.pop_back();
    return taken;
  }
  if (overflow_used_ == overflow_.size()) {
    if (2 * overflow_.size() > UINT32_MAX) {
      throw std::length_error("too many blocks");
    }
    LargeArray<Bucket> larger(2 * overflow_.size());
    std::copy_n(overflow_.data(), overflow_.size(), larger.data());
    overflow_ = std::move(larger);
  }
  return static_cast<uint32_t>(overflow_used_++);
}

}  // namespace goodput
