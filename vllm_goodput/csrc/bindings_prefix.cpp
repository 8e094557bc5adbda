// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "bindings_prefix.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <string>

#include "prefix_index.h"

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

}  // namespace

void bind_prefix(py::module_& m) {
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
