// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <cstddef>
#include <cstdint>

#include "prefix_sets.h"
#include "prefix_table.h"

namespace goodput {

struct Chain {
  const uint64_t* hashes;
  std::size_t n;
};

// Writes the length in blocks of the longest prefix of `chain` that each slot holds to out[slot],
// for the slots that hold its first block. holes: [sets.width()] words, the slots that may hold a
// block without the one before it; the others are found by bisection.
void match_prefix(const BlockTable& table, const SlotSets& sets, const uint64_t* holes, Chain chain,
                  int32_t* out);

}  // namespace goodput
