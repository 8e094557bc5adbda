// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "bindings_predictor.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings_view.h"
#include "forest.h"
#include "mixture.h"
#include "request_features.h"
#include "sessions.h"
#include "text_grams.h"
#include "text_stats.h"

namespace py = pybind11;

using goodput::FeatureRows;
using goodput::Forest;
using goodput::Mixture;
using goodput::SessionLengths;

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <typename T>
std::vector<T> vector_of(const Array<T>& values) {
  return std::vector<T>(values.data(), values.data() + values.size());
}

py::tuple text_features(const py::str& text) {
  const std::string_view bytes = utf8_of(text);
  const auto stats = goodput::text_stats(bytes);
  std::vector<goodput::Gram> grams;
  goodput::text_grams(bytes, grams);
  std::vector<int32_t> buckets;
  std::vector<float> weights;
  for (const goodput::Gram& gram : grams) {
    buckets.push_back(static_cast<int32_t>(gram.bucket));
    weights.push_back(gram.weight);
  }
  return py::make_tuple(py::array_t<float>(stats.size(), stats.data()), array_of(buckets),
                        array_of(weights));
}

py::tuple request_features(const py::iterable& requests) {
  FeatureRows rows;
  for (const py::handle request : requests) {
    const auto [view, session] = request.cast<std::pair<py::object, const SessionLengths*>>();
    rows.add(ReadView(view).view, session);
  }
  return arrays_of(rows);
}

std::shared_ptr<Forest> make_forest(const Array<int32_t>& feature, const Array<float>& threshold,
                                    const Array<int32_t>& left, const Array<int32_t>& nan_left,
                                    const Array<int32_t>& roots, const Array<float>& leaves,
                                    const Array<float>& base, std::size_t features) {
  const auto count = static_cast<std::size_t>(feature.size());
  if (static_cast<std::size_t>(threshold.size()) != count ||
      static_cast<std::size_t>(left.size()) != count ||
      static_cast<std::size_t>(nan_left.size()) != count) {
    throw py::value_error("forest: node arrays differ in length");
  }
  std::vector<goodput::Node> nodes(count);
  for (std::size_t i = 0; i < count; ++i) {
    nodes[i] = {feature.data()[i], threshold.data()[i], left.data()[i], nan_left.data()[i]};
  }
  return std::make_shared<Forest>(nodes, vector_of(roots), vector_of(leaves), vector_of(base),
                                  features);
}

py::array_t<float> forest_predict(const Forest& forest, const Array<float>& rows) {
  if (rows.ndim() != 2 || static_cast<std::size_t>(rows.shape(1)) != forest.features()) {
    throw py::value_error("forest: rows must have shape [n, " + std::to_string(forest.features()) +
                          "]");
  }
  const auto count = static_cast<std::size_t>(rows.shape(0));
  std::vector<const float*> inputs(count);
  for (std::size_t i = 0; i < count; ++i) {
    inputs[i] = rows.data() + i * forest.features();
  }
  py::array_t<float> out({count, forest.outputs()});
  forest.predict(inputs.data(), count, out.mutable_data());
  return out;
}

std::shared_ptr<Mixture> make_mixture(
    std::vector<std::string> models, std::vector<std::string> tasks,
    const Array<float>& head_weights, const Array<float>& head_bias,
    const Array<float>& head_model_bias, const Array<int64_t>& gate_heads,
    const Array<float>& gate_slope, const Array<float>& gate_offset, const Array<float>& declared,
    const std::vector<std::shared_ptr<Forest>>& experts, const Array<float>& offsets) {
  goodput::MixtureParts parts;
  parts.dense_width = FeatureRows::kDense;
  parts.gram_columns = FeatureRows::kGramColumns;
  parts.models = std::move(models);
  parts.tasks = std::move(tasks);
  parts.head_weights = vector_of(head_weights);
  parts.head_bias = vector_of(head_bias);
  parts.head_model_bias = vector_of(head_model_bias);
  parts.gate_heads = vector_of(gate_heads);
  parts.gate_slope = vector_of(gate_slope);
  parts.gate_offset = vector_of(gate_offset);
  parts.declared = vector_of(declared);
  parts.experts.assign(experts.begin(), experts.end());
  parts.offsets = vector_of(offsets);
  return std::make_shared<Mixture>(std::move(parts));
}

std::vector<int32_t> places(const goodput::NameIndex& index, const py::sequence& names) {
  std::vector<int32_t> found;
  for (const py::handle name : names) {
    const std::string text = name.is_none() ? std::string() : text_of(name);
    found.push_back(index.find(text));
  }
  return found;
}

// Throws where the n-grams are no CSR rows within the model's columns.
void check_grams(const Mixture& model, const Array<int64_t>& ends, const Array<int32_t>& indices,
                 const Array<float>& weights) {
  bool valid = indices.size() == weights.size() && ends.data()[0] >= 0 &&
               ends.data()[ends.size() - 1] <= indices.size();
  for (py::ssize_t i = 1; valid && i < ends.size(); ++i) {
    valid = ends.data()[i] >= ends.data()[i - 1];
  }
  for (py::ssize_t i = 0; valid && i < indices.size(); ++i) {
    const int32_t column = indices.data()[i];
    valid = column >= 0 && static_cast<std::size_t>(column) < model.gram_columns();
  }
  if (!valid) {
    throw py::value_error("the n-grams lead outside");
  }
}

py::tuple mixture_predict(const Mixture& model, const Array<float>& dense,
                          const Array<int64_t>& ends, const Array<int32_t>& indices,
                          const Array<float>& weights, const py::sequence& models,
                          const py::sequence& tasks) {
  const std::vector<int32_t> model_at = places(model.models(), models);
  const std::vector<int32_t> task_at = places(model.tasks(), tasks);
  const std::size_t size = model_at.size();
  const auto is = [](py::ssize_t got, std::size_t wanted) {
    return static_cast<std::size_t>(got) == wanted;
  };
  if (dense.ndim() != 2 || !is(dense.shape(0), size) || !is(dense.shape(1), model.dense_width()) ||
      task_at.size() != size || !is(ends.size(), size + 1)) {
    throw py::value_error("features, models and tasks must be of the same requests");
  }
  check_grams(model, ends, indices, weights);
  py::array_t<float> quantiles({size, model.levels()});
  py::array_t<float> gate({size, model.experts()});
  model.predict({dense.data(), ends.data(), indices.data(), weights.data(), size}, model_at.data(),
                task_at.data(), quantiles.mutable_data(), gate.mutable_data());
  return py::make_tuple(quantiles, gate);
}

void bind_features(py::module_& m) {
  m.attr("TEXT_BUCKETS") = goodput::kTextBuckets;
  m.attr("TEXT_STATS") = goodput::kTextStats;
  m.attr("NUMBERS") = FeatureRows::kNumbers;
  m.def("text_features", &text_features, py::arg("text"),
        "Features of one text window, in which a NUL separates head and tail.\n\n"
        "Returns: (its shape float32 [TEXT_STATS], buckets int32 of its hashed word n-grams,\n"
        "  weights float32, of unit length).");
  m.def("request_features", &request_features, py::arg("requests"),
        "Dense features and hashed word n-grams of requests.\n\n"
        "Args:\n"
        "  requests: n pairs of a RequestView and the SessionLengths of its session, or None.\n"
        "Returns: (dense float32 [n, NUMBERS + 3 * TEXT_STATS], ends int64 [n + 1],\n"
        "  indices int32, weights float32): numbers followed by the shape of each text, and the\n"
        "  n-grams as CSR rows over 3 * TEXT_BUCKETS columns, each window scaled to unit length.");
}

void bind_forest(py::module_& m) {
  py::class_<Forest, std::shared_ptr<Forest>>(
      m, "Forest", "Sum of regression trees with one value per output in each leaf.")
      .def(py::init(&make_forest), py::arg("feature"), py::arg("threshold"), py::arg("left"),
           py::arg("nan_left"), py::arg("roots"), py::arg("leaves"), py::arg("base"),
           py::arg("features"),
           "Node arrays of equal length (feature -1: a leaf, whose `left` is the row of `leaves`;\n"
           "else `left` is the left child and the right one follows it), roots [trees], leaves\n"
           "[leaves, outputs], base [outputs].\n"
           "Raises: ValueError where an index leads outside.")
      .def("predict", &forest_predict, py::arg("rows"),
           "Args: rows: float32 [n, features], NaN where missing. Returns: float32 [n, outputs].");
}

void bind_mixture(py::module_& m) {
  py::class_<Mixture, std::shared_ptr<Mixture>>(m, "Mixture",
                                                "A mixture of experts; see predictor/model.py.")
      .def(py::init(&make_mixture), py::kw_only(), py::arg("models"), py::arg("tasks"),
           py::arg("head_weights"), py::arg("head_bias"), py::arg("head_model_bias"),
           py::arg("gate_heads"), py::arg("gate_slope"), py::arg("gate_offset"),
           py::arg("declared"), py::arg("experts"), py::arg("offsets"),
           "Raises: ValueError where shapes do not fit together or an index leads outside.")
      .def("predict", &mixture_predict, py::arg("dense"), py::arg("ends"), py::arg("indices"),
           py::arg("weights"), py::arg("models"), py::arg("tasks"),
           "Quantiles of the natural log length, and the gate's weights.\n\n"
           "Args:\n"
           "  dense, ends, indices, weights: as request_features returns them, of n requests.\n"
           "  models, tasks: n names each; None or unknown where not declared.\n"
           "Returns: (float32 [n, levels], float32 [n, tasks + 1]).\n"
           "Raises: ValueError where shapes or indices do not fit, or the model gives no numbers.");
}

}  // namespace

py::tuple arrays_of(const FeatureRows& rows) {
  py::array_t<float> dense({rows.size(), FeatureRows::kDense}, rows.dense().data());
  return py::make_tuple(dense, array_of(rows.ends()), array_of(rows.indices()),
                        array_of(rows.weights()));
}

void bind_predictor(py::module_& m) {
  bind_features(m);
  bind_forest(m);
  bind_mixture(m);
}
