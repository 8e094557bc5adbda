// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "prefix_lru.h"

#include <algorithm>
#include <stdexcept>

namespace goodput {

namespace {

constexpr std::size_t kInitialBuckets = 16;

}  // namespace

BlockLru::BlockLru(std::size_t capacity) : capacity_(capacity), buckets_(kInitialBuckets, kNone) {}

BlockLru::Ref BlockLru::find(uint64_t hash) const {
  Ref entry = buckets_[bucket(hash)];
  while (entry != kNone && entries_[entry].hash != hash) {
    entry = entries_[entry].chain;
  }
  return entry;
}

BlockLru::Ref BlockLru::before(Ref entry) const {
  const Ref before = entries_[entry].before;
  return before != kNone && held(before) ? before : kNone;
}

BlockLru::Ref BlockLru::add(uint64_t hash, Ref before, Ref newer) {
  Ref entry = ghosts_ > 0 ? find(hash) : kNone;
  if (entry == kNone) {
    entry = take(hash);
  } else {
    entries_[entry].ghost = false;
    --ghosts_;
  }
  entries_[entry].before = before;
  if (before != kNone) {
    ++entries_[before].behind;
  }
  link(entry, newer);
  ++size_;
  return entry;
}

BlockLru::Ref BlockLru::add_ghost(uint64_t hash) {
  const Ref entry = take(hash);
  entries_[entry].ghost = true;
  ++ghosts_;
  return entry;
}

void BlockLru::move(Ref entry, Ref newer) {
  if (entry == newer || entries_[entry].prev == newer) {
    return;
  }
  unlink(entry);
  link(entry, newer);
}

void BlockLru::remove(Ref entry) {
  unlink(entry);
  --size_;
  const Ref before = entries_[entry].before;
  entries_[entry].before = kNone;
  if (entries_[entry].behind > 0) {
    entries_[entry].ghost = true;
    ++ghosts_;
  } else {
    give_back(entry);
  }
  if (before != kNone) {
    leave(before);
  }
}

void BlockLru::clear() { *this = BlockLru(capacity_); }

std::size_t BlockLru::memory_bytes() const {
  return sizeof(*this) + entries_.capacity() * sizeof(Entry) + buckets_.capacity() * sizeof(Ref);
}

// A new entry in its bucket; not in the order of use yet.
BlockLru::Ref BlockLru::take(uint64_t hash) {
  Ref entry = free_;
  if (entry != kNone) {
    free_ = entries_[entry].chain;
  } else {
    if (entries_.size() >= kNone) {
      throw std::length_error("too many blocks of one instance");
    }
    entry = static_cast<Ref>(entries_.size());
    if (entries_.size() == entries_.capacity()) {
      const std::size_t twice = std::max(kInitialBuckets, 2 * entries_.size());
      entries_.reserve(entries_.size() < capacity_ ? std::min(twice, capacity_) : twice);
    }
    entries_.push_back({});
    if (4 * entries_.size() > 3 * buckets_.size()) {
      grow_buckets();
    }
  }
  Ref& first = buckets_[bucket(hash)];
  entries_[entry] = {hash, kNone, kNone, first, kNone, 0, false};
  first = entry;
  return entry;
}

void BlockLru::give_back(Ref entry) {
  Ref* at = &buckets_[bucket(entries_[entry].hash)];
  while (*at != entry) {
    at = &entries_[*at].chain;
  }
  *at = entries_[entry].chain;
  entries_[entry].chain = free_;
  free_ = entry;
}

void BlockLru::link(Ref entry, Ref newer) {
  Entry& e = entries_[entry];
  e.prev = newer;
  e.next = newer == kNone ? head_ : entries_[newer].next;
  (e.prev == kNone ? head_ : entries_[e.prev].next) = entry;
  (e.next == kNone ? tail_ : entries_[e.next].prev) = entry;
}

void BlockLru::unlink(Ref entry) {
  const Entry& e = entries_[entry];
  (e.prev == kNone ? head_ : entries_[e.prev].next) = e.next;
  (e.next == kNone ? tail_ : entries_[e.next].prev) = e.prev;
}

// A block behind `before` is no longer held.
void BlockLru::leave(Ref before) {
  if (--entries_[before].behind == 0 && entries_[before].ghost) {
    --ghosts_;
    give_back(before);
  }
}

void BlockLru::grow_buckets() {
  buckets_.assign(2 * buckets_.size(), kNone);
  // Those in a free list are in no bucket; there are none when entries are appended.
  for (std::size_t entry = 0; entry + 1 < entries_.size(); ++entry) {
    Ref& first = buckets_[bucket(entries_[entry].hash)];
    entries_[entry].chain = first;
    first = static_cast<Ref>(entry);
  }
}

}  // namespace goodput
