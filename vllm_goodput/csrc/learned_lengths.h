// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// The learned predictor: a model, and what finished requests correct; predictor/learned.py
// describes it. Plain C++ without Python; not synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "corrections.h"
#include "lengths.h"
#include "mixture.h"
#include "request_features.h"
#include "sessions.h"

namespace goodput {

// What the predictor is told of a request, beyond its view.
struct LengthRequest {
  std::string model;
  std::string task;
  bool task_declared = false;
  std::string session;            // empty: none
  double cap = 0.0;               // no output is longer, tokens
  double session_residual = 0.0;  // of its session so far, see SessionLengths; ask() fills it in
  double session_count = 0.0;
};

// Requests to predict together, with their features.
struct LengthBatch {
  FeatureRows features;
  std::vector<LengthRequest> requests;
};

// A prediction that remembers how it was made, for when the request finishes.
class PredictedLengths : public Lengths {
 public:
  PredictedLengths(std::vector<double> levels, std::vector<double> logs, double cap,
                   std::vector<double> raw, std::string key, std::size_t unknown,
                   std::shared_ptr<const Mixture> model)
      : Lengths(std::move(levels), std::move(logs), cap),
        raw_(std::move(raw)),
        key_(std::move(key)),
        unknown_(unknown),
        model_(std::move(model)) {}

  // The model's log quantiles before any correction.
  const double* raw() const { return raw_.data(); }
  // And those after it.
  const double* final() const { return logs().data() + 1; }
  std::size_t levels() const { return raw_.size(); }
  // Which corrections it is kept under.
  const std::string& key() const { return key_; }
  // How many of its task and model the model was not trained on.
  std::size_t unknown() const { return unknown_; }
  const Mixture* model() const { return model_.get(); }
  // Null where not kept.
  const FeatureRows* features() const { return features_.get(); }
  void keep(std::unique_ptr<const FeatureRows> features) { features_ = std::move(features); }

 private:
  std::vector<double> raw_;
  std::string key_;
  std::size_t unknown_;
  std::shared_ptr<const Mixture> model_;
  std::unique_ptr<const FeatureRows> features_;
};

class LearnedLengths {
 public:
  struct Settings {
    std::size_t max_label_len = 0;  // characters of a task's or model's name that count
    bool keep_features = false;     // predictions carry the features that they were made from
  };

  LearnedLengths(std::shared_ptr<const Mixture> model, std::shared_ptr<Corrections> corrections,
                 std::shared_ptr<Sessions> sessions, Settings settings);

  // Adds a request to a batch.
  void ask(const RequestView& view, LengthRequest request, LengthBatch& batch) const;
  // Predictions in the batch's order. Throws std::domain_error where the model gives no lengths.
  std::vector<std::shared_ptr<PredictedLengths>> predict(const LengthBatch& batch) const;

  // Whether a prediction was made by this model, so that it can be learned from.
  bool made(const PredictedLengths& predicted) const { return predicted.model() == model_.get(); }
  // A request finished. `predicted`: what was predicted for it, see made(); `session`: empty for
  // none; `cap`: it would have been cut off there.
  void observe(const PredictedLengths& predicted, std::string_view session, double prompt_len,
               double output_len, double cap);

 private:
  std::shared_ptr<PredictedLengths> make(const LengthRequest& request, const float* quantiles,
                                         const float* gate) const;
  std::string_view task_of(const LengthRequest& request, const float* gate) const;

  std::shared_ptr<const Mixture> model_;
  std::shared_ptr<Corrections> corrections_;
  std::shared_ptr<Sessions> sessions_;
  Settings settings_;
  std::vector<double> whole_levels_;  // with 0 and 1
};

}  // namespace goodput
