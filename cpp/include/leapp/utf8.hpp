// UTF-8, read and written character by character.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace leapp::detail {

/// The length of the UTF-8 character at `at`, and the character; length 0 if the bytes are not UTF-8.
inline std::pair<std::size_t, char32_t> utf8_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {1, first};
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || size > text.size() - at) return {0, 0};
  char32_t found = first & (0xff >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return {0, 0};
    found = found << 6 | (byte(at + i) & 0x3f);
  }
  const bool overlong = found < (size == 2 ? 0x80u : size == 3 ? 0x800u : 0x10000u);
  if (overlong || found > 0x10ffff || (found >= 0xd800 && found < 0xe000)) return {0, 0};
  return {size, found};
}

/// Where text stops being UTF-8; npos if it is.
inline std::size_t not_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto [size, found] = utf8_at(text, at);
    if (size == 0) return at;
    at += size;
  }
  return std::string_view::npos;
}

inline void append_utf8(std::string& out, char32_t c) {
  const auto add = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (c < 0x80) return add(c);
  if (c < 0x800) return add(0xc0 | c >> 6), add(0x80 | (c & 0x3f));
  if (c < 0x10000) return add(0xe0 | c >> 12), add(0x80 | (c >> 6 & 0x3f)), add(0x80 | (c & 0x3f));
  add(0xf0 | c >> 18), add(0x80 | (c >> 12 & 0x3f)), add(0x80 | (c >> 6 & 0x3f)), add(0x80 | (c & 0x3f));
}

}  // namespace leapp::detail
