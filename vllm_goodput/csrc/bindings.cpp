// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <string_view>

#include "bindings_corrections.h"
#include "bindings_pool.h"
#include "bindings_predictor.h"
#include "bindings_prefix.h"
#include "bindings_router_speed.h"
#include "block_hash.h"

namespace py = pybind11;

namespace {

py::array_t<uint64_t> to_array(const std::vector<uint64_t>& values) {
  py::array_t<uint64_t> out(static_cast<py::ssize_t>(values.size()));
  if (!values.empty()) {
    std::memcpy(out.mutable_data(), values.data(), values.size() * sizeof(uint64_t));
  }
  return out;
}

void require_block_size(py::ssize_t block_size) {
  if (block_size <= 0) {
    throw py::value_error("block_size must be > 0, got " + std::to_string(block_size));
  }
}

py::array_t<uint64_t> token_block_hashes(
    py::array_t<int64_t, py::array::c_style | py::array::forcecast> token_ids,
    py::ssize_t block_size, uint64_t seed) {
  require_block_size(block_size);
  if (token_ids.ndim() != 1) {
    throw py::value_error("token_ids must be one-dimensional, got " +
                          std::to_string(token_ids.ndim()) + " dimensions");
  }
  const int64_t* data = token_ids.data();
  const auto count = static_cast<std::size_t>(token_ids.size());
  std::vector<uint64_t> hashes;
  {
    py::gil_scoped_release release;
    hashes = goodput::block_hashes(data, count, static_cast<std::size_t>(block_size), seed);
  }
  return to_array(hashes);
}

py::array_t<uint64_t> text_block_hashes(const py::bytes& text, py::ssize_t block_size,
                                        uint64_t seed) {
  require_block_size(block_size);
  const std::string_view view = text;
  const auto* data = reinterpret_cast<const unsigned char*>(view.data());
  std::vector<uint64_t> hashes;
  {
    py::gil_scoped_release release;
    hashes = goodput::block_hashes(data, view.size(), static_cast<std::size_t>(block_size), seed);
  }
  return to_array(hashes);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native parts of vllm-goodput.";
  m.def("token_block_hashes", &token_block_hashes, py::arg("token_ids"), py::arg("block_size"),
        py::arg("seed") = 0x746f6b656eULL,
        "Chained 64-bit hashes of the full blocks of token IDs.\n\n"
        "Args:\n"
        "  token_ids: int sequence or array, shape [n].\n"
        "  block_size: tokens per block, > 0.\n"
        "  seed: separates kinds of keys and cache salts.\n"
        "Returns: uint64 array, shape [n // block_size]; entry i covers the first (i + 1) blocks.\n"
        "Raises: ValueError if block_size <= 0 or token_ids is not one-dimensional.");
  m.def("text_block_hashes", &text_block_hashes, py::arg("text"), py::arg("block_size"),
        py::arg("seed") = 0x74657874ULL,
        "Chained 64-bit hashes of the full blocks of UTF-8 bytes; as token_block_hashes, with\n"
        "another default seed so that text and token keys do not meet.");
  bind_predictor(m);
  bind_prefix(m);
  bind_router_speed(m);
  bind_pool(m);
  bind_corrections(m);
}
