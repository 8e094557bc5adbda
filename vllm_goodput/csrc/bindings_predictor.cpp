// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "bindings_predictor.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "forest.h"
#include "text_features.h"

namespace py = pybind11;

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
py::array_t<T> array_of(const std::vector<T>& values) {
  py::array_t<T> out(static_cast<py::ssize_t>(values.size()));
  if (!values.empty()) {
    std::memcpy(out.mutable_data(), values.data(), values.size() * sizeof(T));
  }
  return out;
}

template <typename T>
std::vector<T> vector_of(const Array<T>& values) {
  return std::vector<T>(values.data(), values.data() + values.size());
}

constexpr std::size_t kMaxWindows = 64;

// requests: n pairs of (numbers, texts), each with the same number of either.
py::tuple request_features(const py::list& requests, std::size_t numbers, std::size_t windows) {
  if (windows > kMaxWindows) {
    throw py::value_error("at most " + std::to_string(kMaxWindows) + " windows");
  }
  const std::size_t rows = requests.size();
  py::array_t<float> dense({rows, numbers + windows * goodput::kTextStats});
  std::vector<int64_t> ends{0};
  std::vector<int32_t> indices;
  std::vector<float> weights;
  std::vector<goodput::Gram> grams;
  ends.reserve(rows + 1);
  float* out = dense.mutable_data();
  for (const py::handle& request : requests) {
    const auto pair = py::reinterpret_borrow<py::sequence>(request);
    const py::list values = pair[0];
    const py::tuple texts = pair[1];
    if (values.size() != numbers || texts.size() != windows) {
      throw py::value_error("every request must have " + std::to_string(numbers) + " numbers and " +
                            std::to_string(windows) + " texts");
    }
    for (std::size_t i = 0; i < numbers; ++i) {
      const py::object value = values[i];  // held: converting it may run any code
      const double number = PyFloat_AsDouble(value.ptr());
      if (number == -1.0 && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
      }
      *out++ = static_cast<float>(number);
    }
    uint32_t offset = 0;
    for (const py::handle& text : texts) {
      Py_ssize_t size = 0;
      const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
      if (data == nullptr) {
        throw py::error_already_set();
      }
      const std::string_view view(data, static_cast<std::size_t>(size));
      const auto shape = goodput::text_stats(view);
      out = std::copy(shape.begin(), shape.end(), out);
      goodput::text_grams(view, grams);
      for (const goodput::Gram& gram : grams) {
        indices.push_back(static_cast<int32_t>(offset + gram.bucket));
        weights.push_back(gram.weight);
      }
      offset += goodput::kTextBuckets;
    }
    ends.push_back(static_cast<int64_t>(indices.size()));
  }
  return py::make_tuple(dense, array_of(ends), array_of(indices), array_of(weights));
}

// Rows of a CSR matrix times a dense one, written into the columns of `out` that begin at `column`.
void sparse_times_dense(const Array<int64_t>& ends, const Array<int32_t>& indices,
                        const Array<float>& weights, const Array<float>& dense,
                        py::array_t<float, py::array::c_style>& out, std::size_t column) {
  if (dense.ndim() != 2 || out.ndim() != 2 || ends.size() != out.shape(0) + 1 ||
      indices.size() != weights.size() || dense.shape(1) > out.shape(1) ||
      column > static_cast<std::size_t>(out.shape(1) - dense.shape(1))) {
    throw py::value_error("sparse_times_dense: shapes do not fit");
  }
  const auto heads = static_cast<std::size_t>(dense.shape(1));
  const auto stride = static_cast<std::size_t>(out.shape(1));
  const int64_t entries = indices.size();
  const auto rows = static_cast<std::size_t>(out.shape(0));
  float* target = out.mutable_data();
  for (std::size_t r = 0; r < rows; ++r) {
    float* sum = target + r * stride + column;
    std::memset(sum, 0, heads * sizeof(float));
    const int64_t begin = ends.data()[r];
    const int64_t end = ends.data()[r + 1];
    if (begin < 0 || end < begin || end > entries) {
      throw py::value_error("sparse_times_dense: ends must not decrease or pass the entries");
    }
    for (int64_t i = begin; i < end; ++i) {
      const int32_t index = indices.data()[i];
      if (index < 0 || index >= dense.shape(0)) {
        throw py::value_error("sparse_times_dense: index " + std::to_string(index) + " is outside");
      }
      const float weight = weights.data()[i];
      const float* row = dense.data() + static_cast<std::size_t>(index) * heads;
      for (std::size_t h = 0; h < heads; ++h) {
        sum[h] += weight * row[h];
      }
    }
  }
}

std::unique_ptr<goodput::Forest> make_forest(
    const Array<int32_t>& feature, const Array<float>& threshold, const Array<int32_t>& left,
    const Array<int32_t>& nan_left, const Array<int32_t>& roots, const Array<float>& leaves,
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
  return std::make_unique<goodput::Forest>(std::move(nodes), vector_of(roots), vector_of(leaves),
                                           vector_of(base), features);
}

py::array_t<float> forest_predict(const goodput::Forest& forest, const Array<float>& rows) {
  if (rows.ndim() != 2 || static_cast<std::size_t>(rows.shape(1)) != forest.features()) {
    throw py::value_error("forest: rows must have shape [n, " + std::to_string(forest.features()) +
                          "]");
  }
  const auto count = static_cast<std::size_t>(rows.shape(0));
  py::array_t<float> out({count, forest.outputs()});
  forest.predict(rows.data(), count, out.mutable_data());
  return out;
}

}  // namespace

void bind_predictor(py::module_& m) {
  m.attr("TEXT_BUCKETS") = goodput::kTextBuckets;
  m.attr("TEXT_STATS") = goodput::kTextStats;
  m.def("request_features", &request_features, py::arg("requests"), py::arg("numbers"),
        py::arg("windows"),
        "Dense features and hashed word n-grams of requests.\n\n"
        "Args:\n"
        "  requests: n pairs of a list of `numbers` numbers and a tuple of `windows` strings, in\n"
        "    which a NUL separates head and tail.\n"
        "Returns: (dense float32 [n, numbers + windows * TEXT_STATS], ends int64 [n + 1],\n"
        "  indices int32, weights float32): the numbers followed by the shape of each text, and\n"
        "  the n-grams as CSR rows over windows * TEXT_BUCKETS columns, each window scaled to\n"
        "  unit length.");
  m.def("sparse_times_dense", &sparse_times_dense, py::arg("ends"), py::arg("indices"),
        py::arg("weights"), py::arg("dense"), py::arg("out").noconvert(), py::arg("column"),
        "CSR rows times `dense` [columns, heads] into out[:, column : column + heads] (float32).\n"
        "Raises: ValueError where shapes or indices do not fit.");
  py::class_<goodput::Forest>(m, "Forest",
                              "Sum of regression trees with one value per output in each leaf.")
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
