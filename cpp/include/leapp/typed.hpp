// What the headers of `leapp deploy cpp` are made of.
#pragma once

#include <array>
#include <cstddef>

#include "pipeline.hpp"

namespace leapp {

/// Values whose places have names: `position[Joint::FL_hip]`. A name that is not of this port does not compile.
template <class T, class Element, std::size_t Size>
struct Named {
  std::array<T, Size> values{};

  T& operator[](Element element) { return values[static_cast<std::size_t>(element)]; }
  const T& operator[](Element element) const { return values[static_cast<std::size_t>(element)]; }
  static constexpr std::size_t size() { return Size; }
  T* data() { return values.data(); }
  const T* data() const { return values.data(); }
  auto begin() { return values.begin(); }
  auto end() { return values.end(); }
  auto begin() const { return values.begin(); }
  auto end() const { return values.end(); }
};

namespace detail {

/// The options for a header that was written for one bundle: any other is refused, unless another digest is asked for.
inline Options pinned(Options options, const char* digest) {
  if (options.expect_digest.empty()) options.expect_digest = digest;
  return options;
}

}  // namespace detail

}  // namespace leapp
