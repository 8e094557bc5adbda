// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "forest.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace goodput {

namespace {

// Walks side by side: their loads overlap.
constexpr std::size_t kLanes = 8;
constexpr std::size_t kCacheLine = 64;
// A quiet NaN, and the bits of it that may hold anything.
constexpr uint32_t kNaN = 0x7fc00000U;
constexpr uint32_t kPayload = 0x003fffffU;
constexpr int32_t kMaxFeature = 0x7fff;
constexpr int64_t kMaxDown = std::numeric_limits<uint16_t>::max();

float nan_of(uint32_t payload) {
  const uint32_t bits = kNaN | payload;
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t payload_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & kPayload;
}

void prefetch_all(const void* begin, std::size_t bytes) {
#if defined(__GNUC__)
  const auto* const at = static_cast<const char*>(begin);
  for (std::size_t i = 0; i < bytes; i += kCacheLine) {
    __builtin_prefetch(at + i);
  }
#else
  (void)begin;
  (void)bytes;
#endif
}

[[noreturn]] void refuse(std::size_t node, const char* what) {
  throw std::invalid_argument("forest: node " + std::to_string(node) + " " + what);
}

}  // namespace

Forest::Forest(const std::vector<Node>& nodes, const std::vector<int32_t>& roots,
               std::vector<float> leaves, std::vector<float> base, std::size_t features)
    : leaves_(std::move(leaves)), base_(std::move(base)), features_(features) {
  if (base_.empty() || features_ == 0 || leaves_.size() % base_.size() != 0) {
    throw std::invalid_argument("forest: leaves must hold one value per output");
  }
  nodes_.resize(nodes.size());
  std::vector<uint32_t> depth(nodes.size(), 0);
  for (std::size_t at = nodes.size(); at-- > 0;) {
    nodes_[at] = pack(nodes, at);
    if (nodes_[at].down != 0) {
      const auto left = static_cast<std::size_t>(nodes[at].left);
      depth[at] = 1 + std::max(depth[left], depth[left + 1]);
    }
  }
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const auto root = static_cast<std::size_t>(roots[i]);
    if (roots[i] < 0 || root >= nodes.size()) {
      throw std::invalid_argument("forest: root " + std::to_string(roots[i]) + " is outside");
    }
    // As a rule, a tree's nodes are those up to the next root.
    const int64_t next = i + 1 < roots.size() ? roots[i + 1] : static_cast<int64_t>(nodes.size());
    const int64_t end = std::clamp<int64_t>(next, roots[i], static_cast<int64_t>(nodes.size()));
    trees_.push_back(tree_of(nodes, root, static_cast<std::size_t>(end), depth[root]));
  }
}

Forest::Packed Forest::pack(const std::vector<Node>& nodes, std::size_t at) const {
  const Node& node = nodes[at];
  if (node.feature < 0) {
    const std::size_t leaves = leaves_.size() / base_.size();
    if (node.left < 0 || static_cast<std::size_t>(node.left) >= leaves) {
      refuse(at, "leads outside");
    }
    if (static_cast<uint32_t>(node.left) > kPayload) {
      refuse(at, "is one leaf too many");
    }
    return {nan_of(static_cast<uint32_t>(node.left)), 1, 0};
  }
  // Children come after their parent, so that no walk goes round in circles.
  const int64_t down = int64_t{node.left} - static_cast<int64_t>(at);
  if (down <= 0 || static_cast<std::size_t>(node.left) + 1 >= nodes.size() ||
      static_cast<std::size_t>(node.feature) >= features_) {
    refuse(at, "leads outside");
  }
  if (down > kMaxDown || node.feature > kMaxFeature) {
    refuse(at, "has a child too far away, or a feature too many");
  }
  return {node.threshold, static_cast<uint16_t>(2 * node.feature + (node.nan_left != 0 ? 1 : 0)),
          static_cast<uint16_t>(down)};
}

// What is fetched ahead of a tree, and its depth.
Forest::Tree Forest::tree_of(const std::vector<Node>& nodes, std::size_t root, std::size_t end,
                             uint32_t depth) const {
  int32_t first = std::numeric_limits<int32_t>::max();
  int32_t last = -1;
  for (std::size_t at = root; at < end; ++at) {
    if (nodes[at].feature < 0) {
      first = std::min(first, nodes[at].left);
      last = std::max(last, nodes[at].left);
    }
  }
  // Leaves far apart, as no training leaves them, are not worth fetching what lies between.
  const bool close = last >= 0 && static_cast<std::size_t>(last - first) < end - root;
  const uint32_t leaves = close ? static_cast<uint32_t>(last - first) + 1 : 0;
  return {static_cast<uint32_t>(root), static_cast<uint32_t>(end), depth,
          static_cast<uint32_t>(close ? first : 0), leaves};
}

inline uint32_t Forest::step(uint32_t node, const float* row) const {
  const Packed at = nodes_[node];
  const float value = row[at.feature >> 1U];
  const bool right = (at.feature & 1U) != 0 ? value >= at.threshold : !(value < at.threshold);
  return node + at.down + (right ? 1 : 0);
}

void Forest::predict(const float* const* rows, std::size_t count, float* out) const {
  if (count == 1) {
    predict_one(rows[0], out);
    return;
  }
  const std::size_t width = base_.size();
  for (std::size_t r = 0; r < count; ++r) {
    std::copy(base_.begin(), base_.end(), out + r * width);
  }
  // Trees outside, rows inside: a tree stays in the cache for the whole batch, and the next one
  // comes meanwhile.
  for (std::size_t k = 0; k < trees_.size(); ++k) {
    if (k + 1 < trees_.size()) {
      prefetch(trees_[k + 1]);
    }
    const Tree& tree = trees_[k];
    for (std::size_t first = 0; first < count; first += kLanes) {
      const std::size_t lanes = std::min(kLanes, count - first);
      std::array<uint32_t, kLanes> at;
      at.fill(tree.root);
      for (uint32_t level = 0; level < tree.depth; ++level) {
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          at[lane] = step(at[lane], rows[first + lane]);
        }
      }
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        add_leaf(at[lane], out + (first + lane) * width);
      }
    }
  }
}

// Trees side by side instead of rows.
void Forest::predict_one(const float* row, float* out) const {
  std::copy(base_.begin(), base_.end(), out);
  for (std::size_t first = 0; first < trees_.size(); first += kLanes) {
    const std::size_t lanes = std::min(kLanes, trees_.size() - first);
    std::array<uint32_t, kLanes> at;
    uint32_t depth = 0;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      at[lane] = trees_[first + lane].root;
      depth = std::max(depth, trees_[first + lane].depth);
    }
    for (uint32_t level = 0; level < depth; ++level) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        at[lane] = step(at[lane], row);
      }
    }
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      add_leaf(at[lane], out);
    }
  }
}

void Forest::prefetch(const Tree& tree) const {
  prefetch_all(nodes_.data() + tree.root, (tree.end - tree.root) * sizeof(Packed));
  prefetch_all(leaves_.data() + tree.first_leaf * base_.size(),
               tree.leaves * base_.size() * sizeof(float));
}

void Forest::add_leaf(uint32_t node, float* out) const {
  const std::size_t width = base_.size();
  const float* const leaf = leaves_.data() + payload_of(nodes_[node].threshold) * width;
  for (std::size_t k = 0; k < width; ++k) {
    out[k] += leaf[k];
  }
}

}  // namespace goodput
