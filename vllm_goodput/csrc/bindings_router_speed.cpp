// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "bindings_router_speed.h"

#include "speed_estimator.h"

namespace py = pybind11;
using goodput::SpeedEstimator;

namespace {

void add(SpeedEstimator& self, double time_s, double requests, double prefill_tokens, double steps,
         double step_sequences) {
  self.add({time_s, requests, prefill_tokens, steps, step_sequences});
}

}  // namespace

void bind_router_speed(py::module_& m) {
  py::class_<SpeedEstimator, std::shared_ptr<SpeedEstimator>>(
      m, "SpeedEstimator",
      "Overhead, prefill time per token and decode step time of one "
      "instance, from response timings.")
      .def(py::init<>())
      .def("add", &add, py::arg("time_s"), py::arg("requests"), py::arg("prefill_tokens"),
           py::arg("steps"), py::arg("step_sequences"),
           "Learn that `time_s` was spent on these amounts of work. Ignored without time or work,\n"
           "and where a number is not finite.")
      .def("overhead_s", &SpeedEstimator::overhead_s, "Fixed time per request, seconds.")
      .def("prefill_token_s", &SpeedEstimator::prefill_token_s, "Seconds per prompt token.")
      .def("decode_step_s", &SpeedEstimator::decode_step_s, py::arg("sequences"),
           "Seconds per output token with so many sequences in the batch.")
      .def("decode_base_s", &SpeedEstimator::decode_base_s,
           "The part of a decode step that does not depend on the batch, seconds.")
      .def("decode_sequence_s", &SpeedEstimator::decode_sequence_s,
           "What each sequence adds to a decode step, seconds.")
      .def("decode_offset_s", &SpeedEstimator::decode_offset_s,
           "Time that the decode part of an answer of two or more tokens takes beside its steps,\n"
           "seconds; may be negative.")
      .def_property_readonly("known", &SpeedEstimator::known,
                             "Whether at least one response has been seen.")
      .def_property_readonly("samples", &SpeedEstimator::samples,
                             "Equations that the estimate rests on.");
}
