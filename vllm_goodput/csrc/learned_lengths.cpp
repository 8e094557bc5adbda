// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "learned_lengths.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace goodput {

namespace {

// Without a declared task, corrections are kept for the gate's first choice if it has this weight
// of all claims.
constexpr float kClearTask = 0.5F;

// The first so many characters of UTF-8 text.
std::string_view head_of(std::string_view text, std::size_t characters) {
  if (text.size() <= characters) {
    return text;
  }
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const bool starts = (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
    if (starts && characters-- == 0) {
      break;
    }
  }
  return text.substr(0, at);
}

// Quantiles with those at the levels 0 and 1 around them: the line of the outer pair goes on.
std::vector<double> with_ends(const Levels& levels, const double* logs) {
  const std::size_t n = levels.size();
  std::vector<double> out(n + 2);
  std::copy_n(logs, n, out.begin() + 1);
  out[0] = logs[0] - (logs[1] - logs[0]) * (levels[0] / (levels[1] - levels[0]));
  const double left = (1.0 - levels[n - 1]) / (levels[n - 1] - levels[n - 2]);
  out[n + 1] = logs[n - 1] + (logs[n - 1] - logs[n - 2]) * left;
  return out;
}

}  // namespace

LearnedLengths::LearnedLengths(std::shared_ptr<const Mixture> model,
                               std::shared_ptr<Corrections> corrections,
                               std::shared_ptr<Sessions> sessions, Settings settings)
    : model_(std::move(model)),
      corrections_(std::move(corrections)),
      sessions_(std::move(sessions)),
      settings_(settings),
      whole_levels_(1, 0.0) {
  const Levels& levels = corrections_->levels();
  if (model_->levels() != levels.size() || model_->dense_width() != FeatureRows::kDense) {
    throw std::invalid_argument("the model is of other levels or features");
  }
  for (std::size_t i = 0; i < levels.size(); ++i) {
    whole_levels_.push_back(levels[i]);
  }
  whole_levels_.push_back(1.0);
}

void LearnedLengths::ask(const RequestView& view, LengthRequest request, LengthBatch& batch) const {
  const SessionLengths* const session = sessions_->find(request.session);
  if (session != nullptr) {
    request.session_residual = session->residual;
    request.session_count = static_cast<double>(session->count);
  }
  batch.features.add(view, session);
  batch.requests.push_back(std::move(request));
}

std::vector<std::shared_ptr<PredictedLengths>> LearnedLengths::predict(
    const LengthBatch& batch) const {
  const std::size_t size = batch.requests.size();
  std::vector<int32_t> models;
  std::vector<int32_t> tasks;
  for (const LengthRequest& request : batch.requests) {
    models.push_back(model_->models().find(request.model));
    tasks.push_back(request.task.empty() ? -1 : model_->tasks().find(request.task));
  }
  const std::size_t gates = model_->experts();
  std::vector<float> quantiles(size * model_->levels());
  std::vector<float> gate(size * gates);
  model_->predict(batch.features.span(), models.data(), tasks.data(), quantiles.data(),
                  gate.data());
  std::vector<std::shared_ptr<PredictedLengths>> made;
  made.reserve(size);
  for (std::size_t i = 0; i < size; ++i) {
    made.push_back(
        make(batch.requests[i], quantiles.data() + i * model_->levels(), gate.data() + i * gates));
    if (settings_.keep_features) {
      made.back()->keep(std::make_unique<const FeatureRows>(batch.features.row(i)));
    }
  }
  return made;
}

std::shared_ptr<PredictedLengths> LearnedLengths::make(const LengthRequest& request,
                                                       const float* quantiles,
                                                       const float* gate) const {
  const std::string_view task = head_of(task_of(request, gate), settings_.max_label_len);
  const std::string_view name = head_of(request.model, settings_.max_label_len);
  const std::size_t unknown =
      (model_->tasks().find(task) < 0 ? 1U : 0U) + (model_->models().find(name) < 0 ? 1U : 0U);
  std::string key = correction_key(task, name);
  const double shift = session_shift(request.session_residual, request.session_count, unknown == 0);
  const Levels& levels = corrections_->levels();
  std::vector<double> raw(quantiles, quantiles + levels.size());
  std::vector<double> final(levels.size());
  corrections_->apply(key, unknown, shift, raw.data(), final.data());
  return std::make_shared<PredictedLengths>(whole_levels_, with_ends(levels, final.data()),
                                            request.cap, std::move(raw), std::move(key), unknown,
                                            model_);
}

// The task that a request's corrections are kept under: as declared, else as the gate sees it.
std::string_view LearnedLengths::task_of(const LengthRequest& request, const float* gate) const {
  const std::size_t tasks = model_->experts() - 1;
  if (request.task_declared || tasks == 0) {
    return request.task;
  }
  const auto first = static_cast<std::size_t>(std::max_element(gate, gate + tasks) - gate);
  const bool clear = gate[first] >= kClearTask * model_->declared(first);
  return clear ? std::string_view(model_->task(first)) : std::string_view();
}

void LearnedLengths::observe(const PredictedLengths& predicted, std::string_view session,
                             double prompt_len, double output_len, double cap) {
  const double residual =
      corrections_->learn(predicted.key(), predicted.unknown() == 0, predicted.raw(),
                          predicted.final(), std::log(output_len), output_len >= cap);
  sessions_->add(session, prompt_len, output_len, residual);
}

}  // namespace goodput
