// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// Reading Python objects that requests are made of; shared by bindings.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <string>
#include <string_view>

#include "request_features.h"

// Name of an attribute, made once and never freed.
class Name {
 public:
  explicit Name(const char* name);
  // The attribute of an object. Throws what reading it raises.
  pybind11::object of(pybind11::handle object) const;

 private:
  PyObject* name_;
};

// Text as UTF-8; lone surrogates, which header values and JSON may hold, are kept apart, too.
std::string text_of(pybind11::handle text);

// UTF-8 inside a Python string, as long as that lives. Throws where there is none.
std::string_view utf8_of(pybind11::handle text);

// A request's view as C++ reads it, and what it borrows from.
struct ReadView {
  // From a predictor.view.RequestView. Throws what reading its fields raises.
  explicit ReadView(pybind11::handle view);

  goodput::RequestView view;

 private:
  std::array<pybind11::object, goodput::RequestView::kWindows> texts_;
};
