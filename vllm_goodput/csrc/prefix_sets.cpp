// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "prefix_sets.h"

#include <algorithm>
#include <stdexcept>

#include "block_hash.h"

namespace goodput {

namespace {

constexpr std::size_t kInitialTable = 64;
constexpr uint64_t kMemberSeed = 0x736c6f74;

uint64_t member_key(int slot) { return mix(kMemberSeed, static_cast<uint64_t>(slot)); }

}  // namespace

SlotSets::SlotSets() : bits_(kInitialTable), keys_(1), counts_(1), table_(kInitialTable, kEmpty) {}

void SlotSets::widen(int count) {
  std::size_t width = width_;
  while (64 * width < static_cast<std::size_t>(count)) {
    width *= 2;
  }
  if (width == width_) {
    return;
  }
  LargeArray<uint64_t> wide(bits_.size() / width_ * width);
  for (std::size_t id = 0; id < keys_.size(); ++id) {
    std::copy_n(bits_.data() + id * width_, width_, wide.data() + id * width);
  }
  bits_ = std::move(wide);
  width_ = width;
}

std::size_t SlotSets::memory_bytes() const {
  return bits_.bytes() + keys_.capacity() * sizeof(uint64_t) +
         (counts_.capacity() + free_.capacity() + table_.capacity()) * sizeof(uint32_t);
}

SlotSets::Id SlotSets::change(Id id, int slot, Change& last) {
  Id to;
  if (last.slot == slot && last.from == id) {
    to = last.to;
  } else {
    to = intern(id, slot);
  }
  ++counts_[to];
  last = {id, to, slot};
  release(id);
  return to;
}

// The set that differs from `id` by `slot`; made if it is not there.
SlotSets::Id SlotSets::intern(Id id, int slot) {
  const uint64_t key = keys_[id] ^ member_key(slot);
  if (key == 0) {
    return kEmpty;
  }
  const std::size_t mask = table_.size() - 1;
  for (std::size_t at = key & mask; table_[at] != kEmpty; at = (at + 1) & mask) {
    const Id candidate = table_[at];
    if (keys_[candidate] == key && equals_flipped(candidate, id, slot)) {
      return candidate;
    }
  }
  return create(id, slot, key);
}

bool SlotSets::equals_flipped(Id candidate, Id id, int slot) const {
  const uint64_t* a = bits(candidate);
  const uint64_t* b = bits(id);
  const auto word = static_cast<std::size_t>(slot) >> 6;
  for (std::size_t i = 0; i < width_; ++i) {
    const uint64_t flipped = i == word ? b[i] ^ (uint64_t{1} << (slot & 63)) : b[i];
    if (a[i] != flipped) {
      return false;
    }
  }
  return true;
}

SlotSets::Id SlotSets::create(Id id, int slot, uint64_t key) {
  Id made;
  if (!free_.empty()) {
    made = free_.back();
    free_.pop_back();
  } else {
    if (keys_.size() >= UINT32_MAX) {
      throw std::length_error("too many distinct sets of instances");
    }
    made = static_cast<Id>(keys_.size());
    if (keys_.size() * width_ == bits_.size()) {
      LargeArray<uint64_t> larger(2 * bits_.size());
      std::copy_n(bits_.data(), bits_.size(), larger.data());
      bits_ = std::move(larger);
    }
    keys_.push_back(0);
    counts_.push_back(0);
  }
  std::copy_n(bits_.data() + std::size_t{id} * width_, width_,
              bits_.data() + std::size_t{made} * width_);
  bits_[std::size_t{made} * width_ + (static_cast<std::size_t>(slot) >> 6)] ^= uint64_t{1}
                                                                               << (slot & 63);
  keys_[made] = key;
  counts_[made] = 0;
  ++live_;
  if (2 * live_ > table_.size()) {
    rehash(2 * table_.size());  // takes in the new one as well
    return made;
  }
  const std::size_t mask = table_.size() - 1;
  std::size_t at = key & mask;
  while (table_[at] != kEmpty) {
    at = (at + 1) & mask;
  }
  table_[at] = made;
  return made;
}

void SlotSets::rehash(std::size_t size) {
  std::vector<Id> table(size, kEmpty);
  const std::size_t mask = size - 1;
  std::vector<bool> unused(keys_.size());
  for (const Id id : free_) {
    unused[id] = true;
  }
  for (std::size_t id = 1; id < keys_.size(); ++id) {
    if (!unused[id]) {
      std::size_t at = keys_[id] & mask;
      while (table[at] != kEmpty) {
        at = (at + 1) & mask;
      }
      table[at] = static_cast<Id>(id);
    }
  }
  table_.swap(table);
}

void SlotSets::release(Id id) {
  if (id == kEmpty || --counts_[id] > 0) {
    return;
  }
  for (Change* last : {&with_, &without_}) {
    if (last->from == id || last->to == id) {
      last->slot = -1;
    }
  }
  const std::size_t mask = table_.size() - 1;
  std::size_t at = keys_[id] & mask;
  while (table_[at] != id) {
    at = (at + 1) & mask;
  }
  forget(at);
  free_.push_back(id);
  --live_;
}

// Frees a place of the table and closes the gap in the run of places behind it.
void SlotSets::forget(std::size_t position) {
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = position;
  for (std::size_t at = (hole + 1) & mask; table_[at] != kEmpty; at = (at + 1) & mask) {
    const std::size_t home = keys_[table_[at]] & mask;
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      table_[hole] = table_[at];
      hole = at;
    }
  }
  table_[hole] = kEmpty;
}

}  // namespace goodput
