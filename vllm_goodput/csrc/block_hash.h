// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace goodput {

// One 64-bit step of the hash: fold `value` into `state` (splitmix64 finaliser).
uint64_t mix(uint64_t state, uint64_t value);

// Chained hashes of the full blocks of `items`: hash i covers items[0 .. (i+1)*block_size), so two
// sequences share hash i exactly when they share that whole prefix (up to 64-bit collisions). A
// partial last block has no hash, as in vLLM. `seed` separates kinds of keys (token IDs, text) and
// cache salts. Requires block_size > 0.
template <typename T>
std::vector<uint64_t> block_hashes(const T* items, std::size_t count, std::size_t block_size,
                                   uint64_t seed) {
  std::vector<uint64_t> hashes;
  hashes.reserve(count / block_size);
  uint64_t state = mix(seed, block_size);
  for (std::size_t begin = 0; begin + block_size <= count; begin += block_size) {
    for (std::size_t i = begin; i < begin + block_size; ++i) {
      state = mix(state, static_cast<uint64_t>(items[i]));
    }
    hashes.push_back(state);
  }
  return hashes;
}

}  // namespace goodput
