// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "prefix_keys.h"

#include <cstring>

#include "block_hash.h"

namespace goodput {

std::vector<uint64_t> token_keys(const uint32_t* tokens, std::size_t count,
                                 std::size_t block_tokens, uint64_t state) {
  std::vector<uint64_t> keys;
  keys.reserve(count / block_tokens);
  for (const uint32_t* block = tokens; count >= block_tokens; count -= block_tokens) {
    std::size_t i = 0;
    for (; i + 1 < block_tokens; i += 2) {
      state = mix(state, block[i] | uint64_t{block[i + 1]} << 32);
    }
    if (i < block_tokens) {
      state = mix(state, block[i]);
    }
    keys.push_back(state);
    block += block_tokens;
  }
  return keys;
}

std::vector<uint64_t> text_keys(const char* text, std::size_t count, std::size_t block_bytes,
                                uint64_t state) {
  std::vector<uint64_t> keys;
  keys.reserve(count / block_bytes);
  for (const char* block = text; count >= block_bytes; count -= block_bytes) {
    for (std::size_t i = 0; i < block_bytes; i += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, block + i, sizeof(word));
      state = mix(state, word);
    }
    keys.push_back(state);
    block += block_bytes;
  }
  return keys;
}

}  // namespace goodput
