// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#include "bindings_view.h"

namespace py = pybind11;

namespace {

double number_of(py::handle from) {
  PyObject* const value = from.ptr();
  // PyFloat_AsDouble makes an object of an integer first.
  const double number =
      PyLong_CheckExact(value) != 0 ? PyLong_AsDouble(value) : PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return number;
}

struct Names {
  Name prompt_len{"prompt_len"};
  std::array<Name, goodput::RequestView::kWindows> texts{Name("last"), Name("first"),
                                                         Name("answer")};
  std::array<Name, goodput::RequestView::kWindows> chars{Name("last_chars"), Name("first_chars"),
                                                         Name("answer_chars")};
  Name turn{"turn"};
  Name answer_lens{"answer_lens"};
  Name repeats{"repeats"};
  Name role{"role"};
  Name tools{"tools"};
  Name tool_results{"tool_results"};
  Name form{"form"};
  Name stops{"stops"};
  Name max_tokens{"max_tokens"};
  Name chat{"chat"};
};

const Names& names() {
  static const Names made;
  return made;
}

}  // namespace

Name::Name(const char* name) : name_(PyUnicode_InternFromString(name)) {}

py::object Name::of(py::handle object) const {
  PyObject* const value = PyObject_GetAttr(object.ptr(), name_);
  if (value == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(value);
}

std::string_view utf8_of(py::handle text) {
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    throw py::error_already_set();
  }
  return {data, static_cast<std::size_t>(size)};
}

std::string text_of(py::handle text) {
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data != nullptr) {
    return {data, static_cast<std::size_t>(size)};
  }
  if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) {
    throw py::error_already_set();
  }
  PyErr_Clear();
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
  if (!bytes) {
    throw py::error_already_set();
  }
  return bytes;
}

ReadView::ReadView(py::handle from) {
  const Names& name = names();
  view.prompt_len = number_of(name.prompt_len.of(from));
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    texts_[i] = name.texts[i].of(from);
    view.texts[i] = utf8_of(texts_[i]);
    view.chars[i] = number_of(name.chars[i].of(from));
  }
  view.turn = number_of(name.turn.of(from));
  for (const py::handle length : name.answer_lens.of(from)) {
    view.answer_lens.push_back(number_of(length));
  }
  view.repeats = number_of(name.repeats.of(from));
  view.role = number_of(name.role.of(from));
  view.tools = number_of(name.tools.of(from));
  view.tool_results = number_of(name.tool_results.of(from));
  view.form = number_of(name.form.of(from));
  view.stops = number_of(name.stops.of(from));
  const py::object max_tokens = name.max_tokens.of(from);
  view.max_tokens = max_tokens.is_none() ? 0.0 : number_of(max_tokens);
  view.chat = number_of(name.chat.of(from));
}
