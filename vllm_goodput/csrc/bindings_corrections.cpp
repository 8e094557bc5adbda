// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "bindings_corrections.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings_predictor.h"
#include "bindings_view.h"
#include "corrections.h"
#include "learned_lengths.h"
#include "sessions.h"

namespace py = pybind11;

using goodput::Corrections;
using goodput::LearnedLengths;
using goodput::Lengths;
using goodput::PredictedLengths;
using goodput::SessionLengths;
using goodput::Sessions;

namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Key = std::pair<py::str, py::str>;

std::string key_of(const Key& key) {
  return goodput::correction_key(text_of(key.first), text_of(key.second));
}

// Empty for None.
std::string name_of(const py::object& name) { return name.is_none() ? "" : text_of(name); }

std::vector<double> latest_of(const SessionLengths& session) {
  const auto known =
      std::min<std::size_t>(static_cast<std::size_t>(session.count), SessionLengths::kLatest);
  std::vector<double> latest(session.latest.begin(), session.latest.begin() + known);
  std::reverse(latest.begin(), latest.end());
  return latest;
}

SessionLengths lengths_of(const std::vector<double>& lengths) {
  SessionLengths made;
  for (const double length : lengths) {
    made.add(0.0, length, 0.0);
  }
  return made;
}

std::shared_ptr<Corrections> make_corrections(std::vector<double> levels,
                                              std::vector<double> normal, std::size_t max_keys) {
  return std::make_shared<Corrections>(goodput::Levels(std::move(levels), std::move(normal)),
                                       max_keys);
}

py::array_t<double> apply(const Corrections& corrections, const Doubles& raw,
                          const std::vector<Key>& keys, const std::vector<std::size_t>& unknown,
                          const std::vector<double>& session_shifts) {
  const std::size_t levels = corrections.levels().size();
  if (raw.ndim() != 2 || static_cast<std::size_t>(raw.shape(0)) != keys.size() ||
      static_cast<std::size_t>(raw.shape(1)) != levels || unknown.size() != keys.size() ||
      session_shifts.size() != keys.size()) {
    throw py::value_error("raw must have one row per key and one column per level");
  }
  py::array_t<double> out({keys.size(), levels});
  for (std::size_t i = 0; i < keys.size(); ++i) {
    corrections.apply(key_of(keys[i]), unknown[i], session_shifts[i], raw.data() + i * levels,
                      out.mutable_data() + i * levels);
  }
  return out;
}

double learn(Corrections& corrections, const Key& key, bool known, const Doubles& raw,
             const Doubles& final, double log_len, bool censored) {
  const std::size_t levels = corrections.levels().size();
  if (static_cast<std::size_t>(raw.size()) != levels ||
      static_cast<std::size_t>(final.size()) != levels) {
    throw py::value_error("raw and final must have one entry per level");
  }
  return corrections.learn(key_of(key), known, raw.data(), final.data(), log_len, censored);
}

py::object features_of(const PredictedLengths& predicted) {
  const goodput::FeatureRows* const features = predicted.features();
  return features == nullptr ? py::object(py::none()) : py::object(arrays_of(*features));
}

std::vector<double> log_quantiles_of(const PredictedLengths& predicted) {
  return {predicted.final(), predicted.final() + predicted.levels()};
}

constexpr std::size_t kFields = 4;

std::vector<std::shared_ptr<PredictedLengths>> predict(const LearnedLengths& learned,
                                                       const py::list& requests) {
  static const Name model("model");
  goodput::LengthBatch batch;
  batch.requests.reserve(requests.size());
  for (const py::handle item : requests) {
    const py::tuple fields = py::cast<py::tuple>(item);
    if (fields.size() != kFields) {
      throw py::value_error("a request is (view, session, task, cap)");
    }
    const py::object view = fields[0];
    const py::object task = fields[2];
    goodput::LengthRequest request;
    request.model = text_of(model.of(view));
    request.session = name_of(fields[1]);
    request.task = name_of(task);
    request.task_declared = !task.is_none();
    request.cap = py::cast<double>(fields[3]);
    learned.ask(ReadView(view).view, std::move(request), batch);
  }
  return learned.predict(batch);
}

void observe(LearnedLengths& learned, const PredictedLengths& predicted, const py::object& session,
             double prompt_len, double output_len, double cap) {
  if (!learned.made(predicted)) {
    throw py::value_error("the prediction is of another model");
  }
  learned.observe(predicted, name_of(session), prompt_len, output_len, cap);
}

void bind_sessions(py::module_& m) {
  py::class_<SessionLengths>(
      m, "SessionLengths",
      "Running figures of one session's output lengths, in natural logarithms of tokens.")
      .def(py::init<>())
      .def_static("of", &lengths_of, py::arg("lengths"),
                  "Figures of known lengths, tokens, oldest first.")
      .def("add", &SessionLengths::add, py::arg("prompt_len"), py::arg("output_len"),
           py::arg("residual") = 0.0, "A turn finished.")
      .def_readonly("count", &SessionLengths::count, "Finished turns.")
      .def_property_readonly("latest", &latest_of, "The last four log lengths, oldest first.")
      .def_readonly("total", &SessionLengths::total, "Sum of all log lengths.")
      .def_readonly("high", &SessionLengths::high, "Largest log length.")
      .def_readonly("low", &SessionLengths::low, "Smallest log length.")
      .def_readonly("context_len", &SessionLengths::context_len,
                    "Prompt and output of the last turn, tokens; 0 if not known.")
      .def_readonly("residual", &SessionLengths::residual,
                    "Running mean of (log length - predicted median).")
      .def_property_readonly("std", &SessionLengths::deviation,
                             "Standard deviation of the log lengths; NaN for fewer than two.");
  py::class_<Sessions, std::shared_ptr<Sessions>>(m, "Sessions",
                                                  "The most recently active sessions.")
      .def(py::init<std::size_t>(), py::arg("max_sessions") = 100'000)
      .def(
          "get",
          [](const Sessions& sessions, const py::object& session) {
            const SessionLengths* const found = sessions.find(name_of(session));
            return found == nullptr ? std::nullopt : std::optional<SessionLengths>(*found);
          },
          py::arg("session"), "A copy of its lengths so far; None for an unknown session.")
      .def(
          "add",
          [](Sessions& sessions, const py::object& session, double prompt_len, double output_len,
             double residual) { sessions.add(name_of(session), prompt_len, output_len, residual); },
          py::arg("session"), py::arg("prompt_len"), py::arg("output_len"),
          py::arg("residual") = 0.0, "A turn of the session finished.")
      .def("__len__", &Sessions::size);
}

void bind_learned(py::module_& m) {
  py::class_<Corrections, std::shared_ptr<Corrections>>(m, "Corrections",
                                                        "See predictor/online.py.")
      .def(py::init(&make_corrections), py::arg("levels"), py::arg("normal"), py::arg("max_keys"))
      .def("apply", &apply, py::arg("raw"), py::arg("keys"), py::arg("unknown"),
           py::arg("session_shifts"))
      .def("learn", &learn, py::arg("key"), py::arg("known"), py::arg("raw"), py::arg("final"),
           py::arg("log_len"), py::arg("censored"))
      .def("__len__", &Corrections::size);
  py::class_<PredictedLengths, Lengths, std::shared_ptr<PredictedLengths>>(
      m, "PredictedLengths", "Lengths that remember how they were predicted.")
      .def_property_readonly("log_quantiles", &log_quantiles_of,
                             "At the model's levels, natural logarithm of tokens.")
      .def_property_readonly(
          "features", &features_of,
          "As request_features returns them, of this request; None if not kept.");
  py::class_<LearnedLengths>(m, "LearnedLengths", "See predictor/learned.py.")
      .def(py::init([](std::shared_ptr<goodput::Mixture> model,
                       std::shared_ptr<Corrections> corrections, std::shared_ptr<Sessions> sessions,
                       std::size_t max_label_len, bool keep_features) {
             return std::make_unique<LearnedLengths>(
                 std::move(model), std::move(corrections), std::move(sessions),
                 LearnedLengths::Settings{max_label_len, keep_features});
           }),
           py::arg("model"), py::arg("corrections"), py::arg("sessions"), py::kw_only(),
           py::arg("max_label_len"), py::arg("keep_features"))
      .def("predict", &predict, py::arg("requests"),
           "Args: requests: list of (RequestView, session, task, cap in tokens).")
      .def("made", &LearnedLengths::made, py::arg("predicted"),
           "Whether this model made the prediction, so that `observe` can learn from it.")
      .def("observe", &observe, py::arg("predicted"), py::arg("session"), py::arg("prompt_len"),
           py::arg("output_len"), py::arg("cap"), "A request finished.");
}

}  // namespace

void bind_corrections(py::module_& m) {
  bind_sessions(m);
  bind_learned(m);
}
