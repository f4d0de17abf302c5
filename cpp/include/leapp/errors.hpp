// The exceptions of this library. Messages say what happened, where, and what to do next; they are those of the Python runtime.
#pragma once

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "utf8.hpp"

namespace leapp {

namespace detail {

/// A text whose control characters are escaped, all but line breaks and tabs: names in a bundle may hold escape sequences, and
/// marks that turn the direction of writing around.
inline std::string visible(std::string_view text) {
  static constexpr char32_t ranges[][2] = {
      {0x00, 0x08},     {0x0b, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x600, 0x605},   {0x61c, 0x61c},
      {0x6dd, 0x6dd},   {0x70f, 0x70f},   {0x890, 0x891},   {0x8e2, 0x8e2},   {0x180e, 0x180e}, {0x200b, 0x200f},
      {0x2028, 0x202e}, {0x2060, 0x2064}, {0x2066, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0001, 0xe007f}};
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    auto [size, c] = utf8_at(text, at);
    if (size == 0) size = 1, c = 0;
    const auto inside = [c_ = c](const char32_t(&range)[2]) { return c_ >= range[0] && c_ <= range[1]; };
    if (std::any_of(std::begin(ranges), std::end(ranges), inside)) {
      char buffer[16];
      const char* form = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer, sizeof buffer, form, static_cast<unsigned>(c == '\r' ? 0 : c));
      out += c == '\r' ? "\\r" : buffer;
    } else {
      out.append(text.substr(at, size));
    }
    at += size;
  }
  return out;
}

}  // namespace detail

/// Base class of every exception thrown on purpose. Control characters in a message are escaped.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(detail::visible(message)) {}
};

/// A bundle is malformed, inconsistent, tampered with or not allowed, or its engine failed.
class BundleError : public Error {
 public:
  using Error::Error;
};

/// A file that a bundle names does not exist.
class BundleFileError : public BundleError {
 public:
  using BundleError::BundleError;
};

/// A value given to a pipeline does not fit its port.
class InputError : public Error {
 public:
  using Error::Error;
};

/// A key names no port of the pipeline.
class UnknownPortError : public Error {
 public:
  using Error::Error;
};

}  // namespace leapp
