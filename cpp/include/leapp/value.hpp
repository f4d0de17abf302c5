// Plain data as a description holds it: null, truth values, integers of any size, floats, text, lists, mappings.
//
// A value can be written as Python writes it, for messages, and as JSON, for the digest of a bundle.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "utf8.hpp"

namespace leapp {

/// One value. Integers are kept as decimal text in `text`, because a description may hold any number of digits.
struct Value {
  enum class Kind { null, boolean, integer, real, text, list, mapping };

  Kind kind = Kind::null;
  bool boolean = false;
  double real = 0;
  std::string text;
  std::vector<Value> items;
  std::vector<std::pair<Value, Value>> entries;
  std::size_t line = 0;  ///< Where it stands in its file, from 1. 0 if it came from no file.

  bool is(Kind other) const { return kind == other; }
  bool is_text(std::string_view other) const { return kind == Kind::text && text == other; }

  /// The value of a text key in a mapping, or nullptr.
  const Value* find(std::string_view key) const {
    for (const auto& [name, value] : entries) {
      if (name.is_text(key)) return &value;
    }
    return nullptr;
  }

  /// The value as a number, if it is an integer or a float.
  std::optional<double> number() const {
    if (kind == Kind::real) return real;
    if (kind != Kind::integer) return std::nullopt;
    double parsed = 0;
    const auto done = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (done.ec == std::errc::result_out_of_range) return text[0] == '-' ? -HUGE_VAL : HUGE_VAL;
    return parsed;
  }

  /// An integer that 64 bits can hold.
  std::optional<std::int64_t> integer() const {
    std::int64_t parsed = 0;
    if (kind != Kind::integer) return std::nullopt;
    const auto done = std::from_chars(text.data(), text.data() + text.size(), parsed);
    return done.ec == std::errc() ? std::optional(parsed) : std::nullopt;
  }
};

namespace detail {

inline std::string hex(char32_t value, int width) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "%0*x", width, static_cast<unsigned>(value));
  return buffer;
}

/// Text in quotes, as Python's repr writes it.
inline std::string repr_text(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    auto [size, c] = utf8_at(text, at);
    if (size == 0) size = 1, c = static_cast<unsigned char>(text[at]);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\', out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad) {
      out += "\\x" + hex(c, 2);
    } else if ((c >= 0x2000 && c <= 0x200f) || (c >= 0x2028 && c <= 0x202f) || c == 0xfeff) {
      out += "\\u" + hex(c, 4);
    } else {
      out.append(text.substr(at, size));
    }
    at += size;
  }
  return out + quote;
}

/// A float in the fewest digits that give it back, as Python's repr and JSON write it.
inline std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto done = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view made(buffer, static_cast<std::size_t>(done.ptr - buffer));
  std::string sign = made[0] == '-' ? "-" : "";
  made.remove_prefix(sign.size());
  const std::size_t e = made.find('e');
  std::string digits(1, made[0]);
  if (e > 2) digits += made.substr(2, e - 2);
  int exponent = 0;
  const std::size_t from = e + (made[e + 1] == '+' ? 2 : 1);
  std::from_chars(made.data() + from, made.data() + made.size(), exponent);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    if (count > 1) digits.insert(1, ".");
    char tail[16];
    std::snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return sign + digits + tail;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.insert(static_cast<std::size_t>(exponent + 1), ".");
}

inline std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    auto [size, c] = utf8_at(text, at);
    if (size == 0) size = 1, c = 0xfffd;
    at += size;
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\f': out += "\\f"; break;
      case '\b': out += "\\b"; break;
      default:
        if (c >= 0x20 && c < 0x7f) {
          out += static_cast<char>(c);
        } else if (c < 0x10000) {
          out += "\\u" + hex(c, 4);
        } else {
          out += "\\u" + hex(0xd800 + ((c - 0x10000) >> 10), 4) + "\\u" + hex(0xdc00 + ((c - 0x10000) & 0x3ff), 4);
        }
    }
  }
  return out + '"';
}

/// A scalar as JSON, with Python's spelling of what JSON has no word for.
inline std::string json_scalar(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null: return "null";
    case Value::Kind::boolean: return value.boolean ? "true" : "false";
    case Value::Kind::integer: return value.text;
    case Value::Kind::real:
      if (std::isnan(value.real)) return "NaN";
      if (std::isinf(value.real)) return value.real < 0 ? "-Infinity" : "Infinity";
      return number_text(value.real);
    default: return json_text(value.text);
  }
}

/// The value as Python's repr writes it.
inline std::string repr(const Value& value) {
  std::string out;
  switch (value.kind) {
    case Value::Kind::null: return "None";
    case Value::Kind::boolean: return value.boolean ? "True" : "False";
    case Value::Kind::integer: return value.text;
    case Value::Kind::real: return number_text(value.real);
    case Value::Kind::text: return repr_text(value.text);
    case Value::Kind::list:
      for (const Value& item : value.items) out += (out.empty() ? "" : ", ") + repr(item);
      return "[" + out + "]";
    default:
      for (const auto& [key, item] : value.entries) out += (out.empty() ? "" : ", ") + repr(key) + ": " + repr(item);
      return "{" + out + "}";
  }
}

/// As Python's str: text without quotes.
inline std::string str(const Value& value) { return value.is(Value::Kind::text) ? value.text : repr(value); }

/// What two scalars have in common if Python takes them for one key. PyYAML knows one NaN.
inline std::string identity(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null: return "z";
    case Value::Kind::boolean: return value.boolean ? "n1" : "n0";
    case Value::Kind::integer: return "n" + value.text;
    case Value::Kind::real: {
      if (!std::isfinite(value.real) || value.real != std::floor(value.real)) return "n" + number_text(value.real);
      char buffer[400];
      std::snprintf(buffer, sizeof buffer, "n%.0f", value.real == 0 ? 0.0 : value.real);
      return buffer;
    }
    default: return "t" + value.text;
  }
}

/// Whether Python calls two values equal.
inline bool same_value(const Value& a, const Value& b) {
  const bool lists = a.is(Value::Kind::list), mappings = a.is(Value::Kind::mapping);
  if (lists != b.is(Value::Kind::list) || mappings != b.is(Value::Kind::mapping)) return false;
  if (lists) {
    if (a.items.size() != b.items.size()) return false;
    for (std::size_t i = 0; i < a.items.size(); ++i) {
      if (!same_value(a.items[i], b.items[i])) return false;
    }
    return true;
  }
  if (!mappings) return identity(a) == identity(b);
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    bool found = false;
    for (const auto& [other, item] : b.entries) found = found || (same_value(key, other) && same_value(value, item));
    if (!found) return false;
  }
  return true;
}

/// Words in brackets, as Python writes a list.
template <class Words>
std::string list_text(const Words& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + repr_text(word);
  return "[" + out + "]";
}

/// Sizes in brackets, as Python writes a list.
inline std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::string out;
  for (const auto size : sizes) out += (out.empty() ? "" : ", ") + std::to_string(size);
  return "[" + out + "]";
}

}  // namespace detail

}  // namespace leapp
