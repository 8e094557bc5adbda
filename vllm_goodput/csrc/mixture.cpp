// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "mixture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace goodput {

namespace {

// Experts with less weight than this are not evaluated.
constexpr float kLeastWeight = 0.02F;
constexpr float kMaxLogLen = 21.0F;  // natural log of tokens; no model has a context of a billion
// Rows at a time: what is computed on the way stays in the cache.
constexpr std::size_t kRows = 64;
// Heads are summed in groups of so many, whose sums fit into registers.
constexpr std::size_t kGroup = 12;

void require(bool holds, const char* what) {
  if (!holds) {
    throw std::invalid_argument(std::string("length model: ") + what);
  }
}

}  // namespace

NameIndex::NameIndex(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    places_[names[i]] = static_cast<int32_t>(i);
  }
}

int32_t NameIndex::find(std::string_view name) const {
  const auto at = places_.find(name);
  return at == places_.end() ? -1 : at->second;
}

// A part of a call.
struct Mixture::Batch {
  const FeatureSpan& features;
  std::size_t begin;
  std::size_t size;
  const int32_t* models;
  const int32_t* tasks;
  float* quantiles;
  float* gate;
};

Mixture::Mixture(MixtureParts parts)
    : parts_(std::move(parts)), models_(parts_.models), tasks_(parts_.tasks) {
  check_parts();
  levels_ = parts_.experts.back()->outputs();
  width_ = parts_.dense_width + heads() + parts_.models.size();
  check_experts();
  pad_heads();
}

void Mixture::check_parts() const {
  const std::size_t tasks = parts_.tasks.size();
  require(parts_.experts.size() == tasks + 1, "needs one expert per task and a general one");
  require(parts_.head_weights.size() == parts_.gram_columns * heads(), "head weights do not fit");
  require(parts_.head_model_bias.size() == parts_.models.size() * heads(),
          "biases by model do not fit");
  require(parts_.gate_heads.size() == tasks && parts_.gate_slope.size() == tasks &&
              parts_.gate_offset.size() == tasks && parts_.declared.size() == tasks,
          "the gate needs one entry per task");
  for (const int64_t head : parts_.gate_heads) {
    require(head >= 0 && static_cast<std::size_t>(head) < heads(), "the gate leads outside");
  }
}

void Mixture::check_experts() const {
  require(parts_.offsets.size() == parts_.experts.size() * levels_, "offsets do not fit");
  for (std::size_t i = 0; i < parts_.experts.size(); ++i) {
    const bool general = i + 1 == parts_.experts.size();
    const Forest& expert = *parts_.experts[i];
    require(expert.outputs() == levels_, "experts differ in their levels");
    require(expert.features() == width_ + (general ? 0 : levels_), "an expert's inputs do not fit");
  }
}

void Mixture::pad_heads() {
  padded_ = (heads() + kGroup - 1) / kGroup * kGroup;
  head_rows_.assign(parts_.gram_columns * padded_, 0.0F);
  for (std::size_t row = 0; row < parts_.gram_columns; ++row) {
    std::copy_n(parts_.head_weights.begin() + row * heads(), heads(),
                head_rows_.begin() + row * padded_);
  }
  parts_.head_weights = {};
}

void Mixture::predict(const FeatureSpan& features, const int32_t* models, const int32_t* tasks,
                      float* quantiles, float* gate) const {
  const std::size_t gates = parts_.tasks.size() + 1;
  for (std::size_t begin = 0; begin < features.size; begin += kRows) {
    predict_some({features, begin, std::min(kRows, features.size - begin), models + begin,
                  tasks + begin, quantiles + begin * levels_, gate + begin * gates});
  }
}

void Mixture::predict_some(const Batch& batch) const {
  std::vector<float> rows(batch.size * (width_ + levels_), 0.0F);
  assemble(batch, rows.data());
  blend(batch, rows.data());
  for (std::size_t row = 0; row < batch.size; ++row) {
    float* const quantiles = batch.quantiles + row * levels_;
    for (std::size_t i = 0; i < levels_; ++i) {
      if (!std::isfinite(quantiles[i])) {
        throw std::domain_error("the length model predicts what is not a number");
      }
    }
    std::sort(quantiles, quantiles + levels_);
    for (std::size_t i = 0; i < levels_; ++i) {
      quantiles[i] = std::clamp(quantiles[i], 0.0F, kMaxLogLen);
    }
  }
}

// Inputs of the experts: dense features, scores, one column per known model, and room for the
// general expert's quantiles. Sets the gate's weights.
void Mixture::assemble(const Batch& batch, float* rows) const {
  const std::size_t dense = parts_.dense_width;
  for (std::size_t row = 0; row < batch.size; ++row, rows += width_ + levels_) {
    const std::size_t at = batch.begin + row;
    std::copy_n(batch.features.dense + at * dense, dense, rows);
    scores(batch.features, at, batch.models[row], rows + dense);
    weigh(rows + dense, batch.tasks[row], batch.gate + row * (parts_.tasks.size() + 1));
    if (batch.models[row] >= 0) {
      rows[dense + heads() + static_cast<std::size_t>(batch.models[row])] = 1.0F;
    }
  }
}

void Mixture::scores(const FeatureSpan& features, std::size_t row, int32_t model,
                     float* out) const {
  for (std::size_t first = 0; first < heads(); first += kGroup) {
    std::array<float, kGroup> sum = {};
    for (int64_t i = features.ends[row]; i < features.ends[row + 1]; ++i) {
      const auto column = static_cast<std::size_t>(features.indices[i]);
      const float* const weights = head_rows_.data() + column * padded_ + first;
      for (std::size_t k = 0; k < kGroup; ++k) {
        sum[k] += features.weights[i] * weights[k];
      }
    }
    std::copy_n(sum.begin(), std::min(kGroup, heads() - first), out + first);
  }
  for (std::size_t head = 0; head < heads(); ++head) {
    out[head] += parts_.head_bias[head];
    if (model >= 0) {
      out[head] += parts_.head_model_bias[static_cast<std::size_t>(model) * heads() + head];
    }
  }
}

// The gate: what no task claims goes to the general expert; a declared task is taken at its word.
void Mixture::weigh(const float* scores, int32_t task, float* gate) const {
  const std::size_t tasks = parts_.tasks.size();
  float total = 0.0F;
  for (std::size_t i = 0; i < tasks; ++i) {
    const float score = scores[parts_.gate_heads[i]];
    gate[i] = 1.0F / (1.0F + std::exp(-(score * parts_.gate_slope[i] + parts_.gate_offset[i])));
    total += gate[i];
  }
  float rest = 0.0F;
  for (std::size_t i = 0; i < tasks; ++i) {
    if (task >= 0) {
      gate[i] = static_cast<std::size_t>(task) == i ? parts_.declared[i] : 0.0F;
    } else {
      gate[i] = gate[i] * parts_.declared[i] / std::max(1.0F, total);
    }
    gate[i] = gate[i] < kLeastWeight ? 0.0F : gate[i];
    rest += gate[i];
  }
  gate[tasks] = 1.0F - rest;
}

// Quantiles of the experts by the gate's weights.
void Mixture::blend(const Batch& batch, float* rows) const {
  const std::size_t tasks = parts_.tasks.size();
  const std::size_t stride = width_ + levels_;
  std::vector<const float*> inputs(batch.size);
  std::vector<std::size_t> used(batch.size);
  std::vector<float> found(batch.size * levels_);
  for (std::size_t k = 0; k <= tasks; ++k) {
    const std::size_t expert = k == 0 ? tasks : k - 1;  // the general one first
    std::size_t count = 0;
    for (std::size_t row = 0; row < batch.size; ++row) {
      if (k == 0 || batch.gate[row * (tasks + 1) + expert] != 0.0F) {
        inputs[count] = rows + row * stride;
        used[count++] = row;
      }
    }
    parts_.experts[expert]->predict(inputs.data(), count, found.data());
    const float* const offset = parts_.offsets.data() + expert * levels_;
    for (std::size_t n = 0; n < count; ++n) {
      const float weight = batch.gate[used[n] * (tasks + 1) + expert];
      float* const out = batch.quantiles + used[n] * levels_;
      for (std::size_t i = 0; i < levels_; ++i) {
        const float part = weight * (found[n * levels_ + i] + offset[i]);
        out[i] = k == 0 ? part : out[i] + part;
        if (k == 0) {
          rows[used[n] * stride + width_ + i] = found[n * levels_ + i];
        }
      }
    }
  }
}

}  // namespace goodput
