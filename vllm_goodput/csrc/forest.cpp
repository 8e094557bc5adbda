// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "forest.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace goodput {

Forest::Forest(std::vector<Node> nodes, std::vector<int32_t> roots, std::vector<float> leaves,
               std::vector<float> base, std::size_t features)
    : nodes_(std::move(nodes)),
      roots_(std::move(roots)),
      leaves_(std::move(leaves)),
      base_(std::move(base)),
      features_(features) {
  if (base_.empty() || leaves_.size() % base_.size() != 0) {
    throw std::invalid_argument("forest: leaves must hold one value per output");
  }
  const auto count = static_cast<int64_t>(nodes_.size());
  const auto leaf_count = static_cast<int64_t>(leaves_.size() / base_.size());
  for (int64_t i = 0; i < count; ++i) {
    const Node& node = nodes_[static_cast<std::size_t>(i)];
    const bool leaf = node.feature < 0;
    // Children come after their parent, so that no walk goes round in circles.
    const bool valid = leaf ? node.left >= 0 && node.left < leaf_count
                            : node.left > i && int64_t{node.left} + 1 < count &&
                                  node.feature < static_cast<int64_t>(features_);
    if (!valid) {
      throw std::invalid_argument("forest: node " + std::to_string(i) + " leads outside");
    }
  }
  for (const int32_t root : roots_) {
    if (root < 0 || root >= count) {
      throw std::invalid_argument("forest: root " + std::to_string(root) + " is outside");
    }
  }
}

void Forest::predict(const float* rows, std::size_t count, float* out) const {
  const std::size_t width = base_.size();
  for (std::size_t r = 0; r < count; ++r) {
    for (std::size_t k = 0; k < width; ++k) {
      out[r * width + k] = base_[k];
    }
  }
  // Trees outside, rows inside: a tree stays in the cache for the whole batch.
  for (const int32_t root : roots_) {
    for (std::size_t r = 0; r < count; ++r) {
      const float* row = rows + r * features_;
      const Node* node = &nodes_[static_cast<std::size_t>(root)];
      while (node->feature >= 0) {
        const float value = row[node->feature];
        const bool left = node->nan_left ? !(value >= node->threshold) : value < node->threshold;
        node = &nodes_[static_cast<std::size_t>(node->left) + (left ? 0 : 1)];
      }
      const float* leaf = &leaves_[static_cast<std::size_t>(node->left) * width];
      for (std::size_t k = 0; k < width; ++k) {
        out[r * width + k] += leaf[k];
      }
    }
  }
}

}  // namespace goodput
