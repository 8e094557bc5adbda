// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace goodput {

// Chained keys of the full blocks of a prompt, for PrefixIndex: key i covers the beginning up to
// the end of block i. As block_hashes (block_hash.h), but two tokens or eight bytes a step.
//
// state: a seed, or the key of the block before the first one here. Blocks of another size, kind,
// model or salt must start from another seed.

std::vector<uint64_t> token_keys(const uint32_t* tokens, std::size_t count,
                                 std::size_t block_tokens, uint64_t state);

// Requires block_bytes % 8 == 0.
std::vector<uint64_t> text_keys(const char* text, std::size_t count, std::size_t block_bytes,
                                uint64_t state);

}  // namespace goodput
