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
  // Throws std::invalid_argument where an index leads outside, a tree is not one, or there are more
  // than 2**15 features, 2**22 leaves or 2**16 nodes between a node and its child.
  Forest(const std::vector<Node>& nodes, const std::vector<int32_t>& roots,
         std::vector<float> leaves, std::vector<float> base, std::size_t features);

  // rows: `count` rows of `features` values, missing ones NaN; out: shape [count, outputs].
  void predict(const float* const* rows, std::size_t count, float* out) const;

  std::size_t outputs() const { return base_.size(); }
  std::size_t features() const { return features_; }

 private:
  // A Node in eight bytes, since what is read of a forest in a batch has often left the caches
  // before the next one. Leaves lead to themselves, so that a walk of a tree's depth ends at one by
  // whatever path.
  struct Packed {
    float threshold;   // of a leaf: a NaN that holds the row of its values
    uint16_t feature;  // twice, and 1 if a missing value goes left
    uint16_t down;     // how far away the left child is; 0 for a leaf
  };
  struct Tree {
    uint32_t root;
    uint32_t end;    // of its nodes, as far as they are worth fetching ahead
    uint32_t depth;  // steps from the root to the farthest leaf
    uint32_t first_leaf;
    uint32_t leaves;  // rows worth fetching ahead
  };

  Packed pack(const std::vector<Node>& nodes, std::size_t at) const;
  Tree tree_of(const std::vector<Node>& nodes, std::size_t root, std::size_t end,
               uint32_t depth) const;
  uint32_t step(uint32_t node, const float* row) const;
  void predict_one(const float* row, float* out) const;
  void prefetch(const Tree& tree) const;
  void add_leaf(uint32_t node, float* out) const;

  std::vector<Packed> nodes_;
  std::vector<Tree> trees_;
  std::vector<float> leaves_;
  std::vector<float> base_;
  std::size_t features_;
};

}  // namespace goodput
