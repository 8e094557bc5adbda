// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "bindings_pool.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "choice.h"
#include "lengths.h"
#include "pool.h"

namespace py = pybind11;
using goodput::Booking;
using goodput::Candidates;
using goodput::Demand;
using goodput::Lengths;
using goodput::Pool;
using goodput::SpeedEstimator;

namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Slots = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Handles = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

template <typename T>
py::array_t<T> copy_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::shared_ptr<Lengths> make_lengths(const Doubles& levels, const Doubles& logs, double cap) {
  return std::make_shared<Lengths>(
      std::vector<double>(levels.data(), levels.data() + levels.size()),
      std::vector<double>(logs.data(), logs.data() + logs.size()), cap);
}

void evaluate(Pool& pool, const Slots& slots, const std::optional<Doubles>& hits,
              const Demand& demand, double output_len, double now_s) {
  if (hits && hits->size() < pool.slots()) {
    throw py::value_error("hits must have one entry per slot of the pool");
  }
  pool.evaluate(slots.data(), static_cast<std::size_t>(slots.size()), hits ? hits->data() : nullptr,
                demand, output_len, now_s);
}

Doubles hit_tokens(const Slots& matched, const Slots& block_size, double tokens_per_block,
                   double prompt_len) {
  if (matched.size() > block_size.size()) {
    throw py::value_error("block_size must have an entry for each of matched");
  }
  Doubles out(matched.size());
  const double most = std::max(0.0, prompt_len - 1.0);
  for (py::ssize_t i = 0; i < matched.size(); ++i) {
    const double block = block_size.data()[i];
    const double usable = std::min(matched.data()[i] * tokens_per_block, most);
    out.mutable_data()[i] = std::floor(usable / block) * block;
  }
  return out;
}

void progress_all(Pool& pool, const Handles& handles, const Doubles& tokens) {
  if (handles.size() != tokens.size()) {
    throw py::value_error("handles and tokens must have the same size");
  }
  for (py::ssize_t i = 0; i < handles.size(); ++i) {
    if (pool.open(handles.at(i))) {
      pool.progress(handles.at(i), tokens.at(i));
    }
  }
}

template <typename T>
void column(py::class_<Candidates>& cls, const char* name, std::vector<T> Candidates::* member,
            const char* doc) {
  cls.def_property_readonly(
      name, [member](const Candidates& c) { return copy_of(c.*member); }, doc);
}

void bind_candidates(py::module_& m) {
  py::class_<Candidates> cls(m, "Candidates",
                             "What a request would meet on some instances; arrays, shape [n].");
  cls.def("__len__", &Candidates::size);
  cls.def("slot_of", [](const Candidates& c, std::size_t k) { return c.slot.at(k); });
  cls.def(
      "row",
      [](const Candidates& c, std::size_t k) {
        return py::make_tuple(c.queue_s.at(k), c.prefill_s[k], c.decode_s[k], c.tpot_s[k],
                              c.hit_tokens[k], c.known[k] != 0);
      },
      py::arg("index"),
      "(queue_s, prefill_s, decode_s, tpot_s, hit_tokens, known) of one instance.");
  column(cls, "slot", &Candidates::slot, "Which instances.");
  column(cls, "in_flight", &Candidates::in_flight, "Requests booked.");
  column(cls, "limit", &Candidates::limit, "Concurrent sequences at most.");
  column(cls, "queue_s", &Candidates::queue_s, "Wait before its own prefill, seconds.");
  column(cls, "prefill_s", &Candidates::prefill_s, "Its prefill, seconds.");
  column(cls, "decode_s", &Candidates::decode_s, "Its decode, seconds.");
  column(cls, "tpot_s", &Candidates::tpot_s, "Per output token, seconds.");
  column(cls, "hit_tokens", &Candidates::hit_tokens, "Prompt tokens in the prefix cache.");
  column(cls, "alone_s", &Candidates::alone_s, "End to end on the idle instance, seconds.");
  column(cls, "alone_tpot_s", &Candidates::alone_tpot_s, "The same per output token.");
  column(cls, "booked_tokens", &Candidates::booked_tokens,
         "Prompt and predicted output of what is booked, tokens.");
  column(cls, "chance", &Candidates::chance, "Of meeting every objective.");
  column(cls, "known", &Candidates::known, "Whether the instance has ever been measured (0, 1).");
}

void bind_booking(py::module_& m) {
  py::class_<Booking>(m, "Booking", "A request dispatched and not finished.")
      .def_readonly("slot", &Booking::slot)
      .def_readonly("tokens", &Booking::tokens)
      .def_readonly("dispatched_s", &Booking::dispatched_s)
      .def_readonly("moved_s", &Booking::moved_s)
      .def_readonly("moves", &Booking::moves)
      .def_readonly("first", &Booking::first);
}

void bind_choice(py::module_& m) {
  using goodput::GoodputChoice;
  py::class_<GoodputChoice>(m, "GoodputChoice", "See csrc/choice.h.")
      .def(py::init([](double stretch, double min_price, double occupancy_price,
                       double size_exponent, double tolerance, double urgency_weight,
                       int max_unmeasured) {
             return GoodputChoice({stretch, min_price, occupancy_price, size_exponent, tolerance,
                                   urgency_weight, max_unmeasured});
           }),
           py::kw_only(), py::arg("stretch"), py::arg("min_price"), py::arg("occupancy_price"),
           py::arg("size_exponent"), py::arg("tolerance"), py::arg("urgency_weight"),
           py::arg("max_unmeasured"))
      .def("choose", &GoodputChoice::choose, py::arg("pool"), py::arg("demand"), py::arg("lengths"),
           py::arg("now_s"), py::arg("learn"))
      .def_property_readonly("gains", [](const GoodputChoice& c) { return copy_of(c.gains()); })
      .def_property_readonly("worths", [](const GoodputChoice& c) { return copy_of(c.worths()); })
      .def("__deepcopy__", [](const GoodputChoice& c, const py::object&) { return c; });
}

}  // namespace

void bind_pool(py::module_& m) {
  py::class_<Lengths, std::shared_ptr<Lengths>>(
      m, "Lengths", "Distribution of an output length, piecewise linear in its logarithm.")
      .def(py::init(&make_lengths), py::arg("levels"), py::arg("logs"), py::arg("cap"))
      .def("quantile", &Lengths::quantile, py::arg("q"))
      .def("cdf", &Lengths::cdf, py::arg("length"))
      .def("remaining", &Lengths::remaining, py::arg("generated"), py::arg("q"))
      .def("ends_within", py::overload_cast<double, double>(&Lengths::ends_within, py::const_),
           py::arg("generated"), py::arg("more"))
      .def_property_readonly("logs", [](const Lengths& l) { return copy_of(l.logs()); });
  py::class_<Demand>(m, "Demand", "What a request asks of an instance.")
      .def(py::init([](double prompt_len, double generated, double deadline_s,
                       double ttft_deadline_s, double tpot_slo_s, bool streaming) {
             return Demand{prompt_len,      generated,  deadline_s,
                           ttft_deadline_s, tpot_slo_s, streaming};
           }),
           py::arg("prompt_len"), py::arg("generated"), py::arg("deadline_s"),
           py::arg("ttft_deadline_s"), py::arg("tpot_slo_s"), py::arg("streaming"));
  m.def("hit_tokens", &hit_tokens, py::arg("matched"), py::arg("block_size"),
        py::arg("tokens_per_block"), py::arg("prompt_len"),
        "See router/prefix.py, Blocks.hit_tokens.");
  bind_candidates(m);
  bind_booking(m);
  py::class_<Pool>(m, "Pool", "Bookings, speeds and predictions of a pool; see csrc/pool.h.")
      .def(py::init<>())
      .def("add_instance", &Pool::add_instance, py::arg("limit"))
      .def("remove_instance", &Pool::remove_instance, py::arg("slot"))
      .def("set_limit", &Pool::set_limit, py::arg("slot"), py::arg("limit"))
      .def("set_speed", &Pool::set_speed, py::arg("slot"), py::arg("speed"))
      .def("speed", &Pool::speed, py::arg("slot"))
      .def("in_flight", &Pool::in_flight, py::arg("slot"))
      .def_property_readonly("slots", &Pool::slots)
      .def("book", &Pool::book, py::arg("slot"), py::arg("demand"), py::arg("hit_tokens"),
           py::arg("ttft_s"), py::arg("tpot_s"), py::arg("lengths"), py::arg("now_s"))
      .def("first_token", &Pool::first_token, py::arg("handle"), py::arg("now_s"))
      .def("progress", &Pool::progress, py::arg("handle"), py::arg("tokens"))
      .def("progress_all", &progress_all, py::arg("handles"), py::arg("tokens"))
      .def("release", &Pool::release, py::arg("handle"), py::arg("output_len"), py::arg("now_s"))
      .def("open", &Pool::open, py::arg("handle"))
      .def("booking", &Pool::booking, py::arg("handle"), py::return_value_policy::copy)
      .def("moved", &Pool::moved, py::arg("handle"), py::arg("moves"), py::arg("now_s"))
      .def("handles", &Pool::handles, py::arg("slot"))
      .def("evaluate", &evaluate, py::arg("slots"), py::arg("hits").none(true), py::arg("demand"),
           py::arg("output_len"), py::arg("now_s"))
      .def("chances", &Pool::chances, py::arg("demand"), py::arg("lengths"), py::arg("stretch"),
           py::arg("now_s"))
      .def_property_readonly("candidates", &Pool::candidates,
                             py::return_value_policy::reference_internal)
      .def("harm", &Pool::harm, py::arg("slot"), py::arg("prefill"), py::arg("now_s"))
      .def("chance_to_stay", &Pool::chance_to_stay, py::arg("handle"), py::arg("now_s"))
      .def("soonest_finish_s", &Pool::soonest_finish_s, py::arg("now_s"))
      .def("queued_prefill", &Pool::queued_prefill, py::arg("slot"), py::arg("now_s"))
      .def("prefill_share", &Pool::prefill_share, py::arg("slot"), py::arg("now_s"));
  bind_choice(m);
}
