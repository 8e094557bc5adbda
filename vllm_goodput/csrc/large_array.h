// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

// For functions that only prefetch: where GCC does not inline one, it takes it for a function
// without effect and drops the calls.
#define GOODPUT_PREFETCHES __attribute__((always_inline)) inline

namespace goodput {

// An array of zeros of fixed length. A large one is in huge pages where the system has them (random
// access to hundreds of megabytes is otherwise bound by address translation) and takes memory only
// as it is used. Aligned to cache lines.
template <typename T>
class LargeArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  LargeArray() = default;
  explicit LargeArray(std::size_t size) : size_(size) {
    if (bytes() == 0) {
      return;
    }
    if (bytes() < kPage) {
      mapping_ = std::aligned_alloc(kLine, round_up(bytes(), kLine));
      data_ = static_cast<T*>(mapping_);
      if (data_ == nullptr) {
        throw std::bad_alloc();
      }
      std::memset(mapping_, 0, bytes());
      return;
    }
    mapping_ = mmap(nullptr, mapped(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) {
      mapping_ = nullptr;
      throw std::bad_alloc();
    }
    data_ = reinterpret_cast<T*>(round_up(reinterpret_cast<std::size_t>(mapping_), kPage));
#ifdef MADV_HUGEPAGE
    madvise(data_, round_up(bytes(), kPage), MADV_HUGEPAGE);  // advice only: works without
#endif
  }
  LargeArray(LargeArray&& other) noexcept { swap(other); }
  LargeArray& operator=(LargeArray&& other) noexcept {
    swap(other);
    return *this;
  }
  LargeArray(const LargeArray&) = delete;
  LargeArray& operator=(const LargeArray&) = delete;
  ~LargeArray() {
    if (bytes() < kPage) {
      std::free(mapping_);
    } else if (mapping_ != nullptr) {
      munmap(mapping_, mapped());
    }
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kPage = std::size_t{1} << 21;

  static std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
  }
  std::size_t mapped() const { return round_up(bytes(), kPage) + kPage; }

  void swap(LargeArray& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  void* mapping_ = nullptr;
};

}  // namespace goodput
