// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "forest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace goodput {

namespace {

// Walks side by side: their loads overlap.
constexpr std::size_t kLanes = 8;

inline int32_t step(const Node& node, const float* row) {
  const float value = row[node.feature];
  const bool left = node.nan_left ? !(value >= node.threshold) : value < node.threshold;
  return node.left + (left ? 0 : 1);
}

}  // namespace

Forest::Forest(std::vector<Node> nodes, std::vector<int32_t> roots, std::vector<float> leaves,
               std::vector<float> base, std::size_t features)
    : nodes_(std::move(nodes)),
      leaves_(std::move(leaves)),
      base_(std::move(base)),
      features_(features) {
  if (base_.empty() || features_ == 0 || leaves_.size() % base_.size() != 0) {
    throw std::invalid_argument("forest: leaves must hold one value per output");
  }
  const auto count = static_cast<int64_t>(nodes_.size());
  const auto leaf_count = static_cast<int64_t>(leaves_.size() / base_.size());
  leaf_of_.assign(nodes_.size(), -1);
  std::vector<int32_t> depth(nodes_.size(), 0);
  for (int64_t i = count - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    Node& node = nodes_[at];
    const bool leaf = node.feature < 0;
    // Children come after their parent, so that no walk goes round in circles.
    const bool valid = leaf ? node.left >= 0 && node.left < leaf_count
                            : node.left > i && int64_t{node.left} + 1 < count &&
                                  node.feature < static_cast<int64_t>(features_);
    if (!valid) {
      throw std::invalid_argument("forest: node " + std::to_string(i) + " leads outside");
    }
    if (leaf) {
      leaf_of_[at] = node.left;
      node = {0, std::numeric_limits<float>::quiet_NaN(), static_cast<int32_t>(i), 1};
    } else {
      const auto left = static_cast<std::size_t>(node.left);
      depth[at] = 1 + std::max(depth[left], depth[left + 1]);
    }
  }
  for (const int32_t root : roots) {
    if (root < 0 || root >= count) {
      throw std::invalid_argument("forest: root " + std::to_string(root) + " is outside");
    }
    trees_.push_back({root, depth[static_cast<std::size_t>(root)]});
  }
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
  // Trees outside, rows inside: a tree stays in the cache for the whole batch.
  for (const Tree& tree : trees_) {
    for (std::size_t first = 0; first < count; first += kLanes) {
      const std::size_t lanes = std::min(kLanes, count - first);
      std::array<int32_t, kLanes> at;
      at.fill(tree.root);
      for (int32_t level = 0; level < tree.depth; ++level) {
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          at[lane] = step(nodes_[static_cast<std::size_t>(at[lane])], rows[first + lane]);
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
    std::array<int32_t, kLanes> at;
    int32_t depth = 0;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      at[lane] = trees_[first + lane].root;
      depth = std::max(depth, trees_[first + lane].depth);
    }
    for (int32_t level = 0; level < depth; ++level) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        at[lane] = step(nodes_[static_cast<std::size_t>(at[lane])], row);
      }
    }
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      add_leaf(at[lane], out);
    }
  }
}

void Forest::add_leaf(int32_t node, float* out) const {
  const std::size_t width = base_.size();
  const float* const leaf =
      leaves_.data() + static_cast<std::size_t>(leaf_of_[static_cast<std::size_t>(node)]) * width;
  for (std::size_t k = 0; k < width; ++k) {
    out[k] += leaf[k];
  }
}

}  // namespace goodput
