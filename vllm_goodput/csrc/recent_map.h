// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace goodput {

// Values by name; when there are more than `capacity`, the least recently touched one is forgotten.
template <typename Value>
class RecentMap {
 public:
  explicit RecentMap(std::size_t capacity) : capacity_(std::max<std::size_t>(1, capacity)) {}

  // Null where unknown. Does not count as a touch.
  const Value* find(std::string_view name) const {
    const auto at = places_.find(name);
    return at == places_.end() ? nullptr : &at->second->value;
  }

  // The value of a name, made of `arguments` where unknown. Valid until another name is touched.
  template <typename... Arguments>
  Value& touch(std::string_view name, const Arguments&... arguments) {
    const auto at = places_.find(name);
    if (at != places_.end()) {
      entries_.splice(entries_.begin(), entries_, at->second);
      return at->second->value;
    }
    if (entries_.size() >= capacity_) {
      places_.erase(entries_.back().name);
      entries_.pop_back();
    }
    entries_.emplace_front(name, arguments...);
    places_.emplace(entries_.front().name, entries_.begin());
    return entries_.front().value;
  }

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    template <typename... Arguments>
    explicit Entry(std::string_view name, const Arguments&... arguments)
        : name(name), value(arguments...) {}

    std::string name;
    Value value;
  };

  std::size_t capacity_;
  std::list<Entry> entries_;  // the most recently touched first
  std::unordered_map<std::string_view, typename std::list<Entry>::iterator> places_;
};

}  // namespace goodput
