// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// The trained length model: text heads, gate and experts; predictor/model.py describes it. Plain
// C++ without Python; immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forest.h"

namespace goodput {

// Features of `size` requests, kept elsewhere: dense rows [size, dense_width], and n-grams as CSR
// rows (ends [size + 1]).
struct FeatureSpan {
  const float* dense;
  const int64_t* ends;
  const int32_t* indices;
  const float* weights;
  std::size_t size;
};

// Positions of names; -1 for others.
class NameIndex {
 public:
  explicit NameIndex(const std::vector<std::string>& names);
  int32_t find(std::string_view name) const;

 private:
  std::map<std::string, int32_t, std::less<>> places_;
};

// What a model consists of; shapes as in predictor/model.py, arrays row by row.
struct MixtureParts {
  std::size_t dense_width = 0;
  std::size_t gram_columns = 0;
  std::vector<std::string> models;
  std::vector<std::string> tasks;
  std::vector<float> head_weights;  // [gram_columns, heads]
  std::vector<float> head_bias;
  std::vector<float> head_model_bias;  // [models, heads]
  std::vector<int64_t> gate_heads;
  std::vector<float> gate_slope;
  std::vector<float> gate_offset;
  std::vector<float> declared;
  std::vector<std::shared_ptr<const Forest>> experts;  // one per task, then the general one
  std::vector<float> offsets;                          // [tasks + 1, levels]
};

class Mixture {
 public:
  // Throws std::invalid_argument where sizes do not fit together or an index leads outside.
  explicit Mixture(MixtureParts parts);

  // Quantiles of the natural log length [size, levels], non-decreasing along the levels, and the
  // gate's weights [size, tasks + 1]. `models`, `tasks`: positions of what the requests name, or
  // -1. The features must have dense_width() columns and no n-gram outside gram_columns(). Throws
  // std::domain_error where the model's numbers are none.
  void predict(const FeatureSpan& features, const int32_t* models, const int32_t* tasks,
               float* quantiles, float* gate) const;

  const NameIndex& models() const { return models_; }
  const NameIndex& tasks() const { return tasks_; }
  // Of the gate: one per task, and the general one.
  std::size_t experts() const { return parts_.experts.size(); }
  const std::string& task(std::size_t i) const { return parts_.tasks[i]; }
  float declared(std::size_t task) const { return parts_.declared[task]; }
  std::size_t levels() const { return levels_; }
  std::size_t dense_width() const { return parts_.dense_width; }
  std::size_t gram_columns() const { return parts_.gram_columns; }

 private:
  struct Batch;

  std::size_t heads() const { return parts_.head_bias.size(); }
  void check_parts() const;
  void check_experts() const;
  void pad_heads();
  void predict_some(const Batch& batch) const;
  void assemble(const Batch& batch, float* rows) const;
  void scores(const FeatureSpan& features, std::size_t row, int32_t model, float* out) const;
  void weigh(const float* scores, int32_t task, float* gate) const;
  void blend(const Batch& batch, float* rows) const;

  MixtureParts parts_;
  NameIndex models_;
  NameIndex tasks_;
  std::size_t levels_;
  std::size_t width_;             // of what the general expert sees
  std::size_t padded_;            // heads, rounded up to whole groups
  std::vector<float> head_rows_;  // [gram_columns, padded]
};

}  // namespace goodput
