// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "bindings_prefix.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "prefix_index.h"
#include "prefix_keys.h"

namespace py = pybind11;

namespace {

using goodput::PrefixIndex;
using Hashes = py::array_t<uint64_t, py::array::c_style>;

std::size_t length_of(const Hashes& hashes) {
  if (hashes.ndim() != 1) {
    throw py::value_error("hashes must be one-dimensional, got " + std::to_string(hashes.ndim()) +
                          " dimensions");
  }
  return static_cast<std::size_t>(hashes.size());
}

py::array_t<int32_t> match(const PrefixIndex& index, const Hashes& hashes) {
  const std::size_t n = length_of(hashes);
  py::array_t<int32_t> out(index.slots());
  index.match(hashes.data(), n, out.mutable_data());
  return out;
}

py::array_t<uint64_t> to_array(const std::vector<uint64_t>& values) {
  py::array_t<uint64_t> out(static_cast<py::ssize_t>(values.size()));
  if (!values.empty()) {
    std::memcpy(out.mutable_data(), values.data(), values.size() * sizeof(uint64_t));
  }
  return out;
}

void require_block(std::size_t size, std::size_t multiple, const char* name) {
  if (size == 0 || size % multiple != 0) {
    throw py::value_error(std::string(name) + " must be a multiple of " + std::to_string(multiple) +
                          ", > 0, got " + std::to_string(size));
  }
}

// None where an item is no int of 32 bits.
py::object token_keys(const py::list& tokens, std::size_t block_tokens, uint64_t state,
                      std::size_t max_blocks) {
  require_block(block_tokens, 1, "block_tokens");
  const bool all = tokens.size() / block_tokens < max_blocks;
  std::vector<uint32_t> ids(all ? tokens.size() : max_blocks * block_tokens);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    PyObject* item = PyList_GET_ITEM(tokens.ptr(), static_cast<Py_ssize_t>(i));
    int overflow = 0;
    const long long id =
        PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
    if (overflow != 0 || id < 0 || id > UINT32_MAX) {
      return py::none();
    }
    ids[i] = static_cast<uint32_t>(id);
  }
  return to_array(goodput::token_keys(ids.data(), ids.size(), block_tokens, state));
}

py::array_t<uint64_t> text_keys(const py::bytes& text, std::size_t block_bytes, uint64_t state,
                                std::size_t max_blocks) {
  require_block(block_bytes, sizeof(uint64_t), "block_bytes");
  const std::string_view view = text;
  const std::size_t blocks = std::min(view.size() / block_bytes, max_blocks);
  return to_array(goodput::text_keys(view.data(), blocks * block_bytes, block_bytes, state));
}

}  // namespace

void bind_prefix(py::module_& m) {
  m.def(
      "token_keys", &token_keys, py::arg("token_ids"), py::arg("block_tokens"), py::arg("state"),
      py::arg("max_blocks"),
      "Chained 64-bit keys of the full blocks of a list of token IDs.\n\n"
      "Args:\n"
      "  block_tokens: tokens per block, > 0.\n"
      "  state: a seed, or the key of the block before these.\n"
      "  max_blocks: no more are made.\n"
      "Returns: uint64 array, shape [min(n // block_tokens, max_blocks)]; None if one of the IDs\n"
      "  is no int in 0 .. 2**32 - 1.");
  m.def("text_keys", &text_keys, py::arg("text"), py::arg("block_bytes"), py::arg("state"),
        py::arg("max_blocks"), "As token_keys, of bytes; block_bytes is a multiple of 8.");
  py::class_<PrefixIndex>(
      m, "PrefixIndex",
      "Which instance (slot) holds how many blocks of a prompt in its prefix cache.\n\n"
      "Hashes are uint64 arrays, shape [n], chained: each covers the whole prefix. Every slot "
      "keeps\n"
      "its most recently used blocks up to its capacity. Calls for a slot that is not there raise\n"
      "IndexError.")
      .def(py::init<>())
      .def_readonly_static("MAX_SLOTS", &PrefixIndex::kMaxSlots)
      .def("add_instance", &PrefixIndex::add_instance, py::arg("slot"), py::arg("capacity_blocks"),
           "Add a slot, 0 <= slot < MAX_SLOTS, that holds nothing; or change the capacity of one.")
      .def("remove_instance", &PrefixIndex::remove_instance, py::arg("slot"),
           "Forget a slot, if it is there.")
      .def("clear_instance", &PrefixIndex::clear_instance, py::arg("slot"),
           "Forget what a slot holds.")
      .def("has_instance", &PrefixIndex::has_instance, py::arg("slot"))
      .def(
          "insert",
          [](PrefixIndex& index, int slot, const Hashes& hashes) {
            index.insert(slot, hashes.data(), length_of(hashes));
          },
          py::arg("slot"), py::arg("hashes").noconvert(),
          "A prompt was sent there: its blocks become the most recently used.")
      .def(
          "extend",
          [](PrefixIndex& index, int slot, uint64_t parent, const Hashes& hashes) {
            index.extend(slot, parent, hashes.data(), length_of(hashes));
          },
          py::arg("slot"), py::arg("parent"), py::arg("hashes").noconvert(),
          "As insert of the chain that ends with `parent`, followed by `hashes`.")
      .def(
          "evict",
          [](PrefixIndex& index, int slot, const Hashes& hashes) {
            index.evict(slot, hashes.data(), length_of(hashes));
          },
          py::arg("slot"), py::arg("hashes").noconvert(), "These blocks are gone.")
      .def("match", &match, py::arg("hashes").noconvert(),
           "Longest prefix that each slot holds, in blocks: int32 array, shape [slots].")
      .def("contains", &PrefixIndex::contains, py::arg("slot"), py::arg("hash"))
      .def("held", &PrefixIndex::held, py::arg("slot"), "Blocks that a slot holds.")
      .def("capacity", &PrefixIndex::capacity, py::arg("slot"), "Blocks that a slot may hold.")
      .def_property_readonly("slots", &PrefixIndex::slots, "1 + the highest slot ever added.")
      .def_property_readonly("distinct", &PrefixIndex::distinct, "Distinct blocks held.")
      .def_property_readonly("memory_bytes", &PrefixIndex::memory_bytes)
      .def("__len__", &PrefixIndex::size, "Blocks held, summed over the slots.");
}
