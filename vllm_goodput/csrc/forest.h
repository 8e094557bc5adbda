// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace goodput {

// A split, or a leaf where `feature` < 0. The right child follows the left one.
struct Node {
  int32_t feature;
  float threshold;   // goes left if value < threshold
  int32_t left;      // of a split: index of the left child; of a leaf: index of its values
  int32_t nan_left;  // whether a missing value goes left
};

// A sum of regression trees whose leaves hold one value per output, as XGBoost builds them.
class Forest {
 public:
  // roots: index of each tree's root. leaves: shape [leaves, outputs]. base: start of each output.
  // Throws std::invalid_argument where an index leads outside or a tree is not one.
  Forest(std::vector<Node> nodes, std::vector<int32_t> roots, std::vector<float> leaves,
         std::vector<float> base, std::size_t features);

  // rows: `count` rows of `features` values, missing ones NaN; out: shape [count, outputs].
  void predict(const float* const* rows, std::size_t count, float* out) const;

  std::size_t outputs() const { return base_.size(); }
  std::size_t features() const { return features_; }

 private:
  struct Tree {
    int32_t root;
    int32_t depth;
  };

  void predict_one(const float* row, float* out) const;
  void add_leaf(int32_t node, float* out) const;

  // Leaves lead to themselves here, so that a walk of a tree's depth ends at one by whatever path.
  std::vector<Node> nodes_;
  std::vector<int32_t> leaf_of_;  // row of leaves_ of a node that is a leaf
  std::vector<Tree> trees_;
  std::vector<float> leaves_;
  std::vector<float> base_;
  std::size_t features_;
};

}  // namespace goodput
