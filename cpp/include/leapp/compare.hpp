// Two values of one port compared: NaN and infinity, floats within a tolerance, integers and truth values exactly.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "description.hpp"

namespace leapp::detail {

template <class T>
T read_as(const unsigned char* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

/// A float of few bits: sign, exponent, mantissa. `finite` formats have no infinity and one NaN; `uz` have no negative zero.
inline double small_float(unsigned bits, int exponent_bits, int mantissa_bits, int bias, bool finite, bool uz) {
  const unsigned sign = bits >> (exponent_bits + mantissa_bits) & 1u;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const int top = (1 << exponent_bits) - 1, full = (1 << mantissa_bits) - 1;
  if (uz && sign != 0 && exponent == 0 && mantissa == 0) return std::nan("");
  if (!uz && finite && exponent == top && mantissa == full) return std::nan("");
  if (!finite && exponent == top) return mantissa != 0 ? std::nan("") : sign != 0 ? -HUGE_VAL : HUGE_VAL;
  const double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                     : std::ldexp(mantissa + full + 1, exponent - bias - mantissa_bits);
  return sign != 0 ? -value : value;
}

/// Whether values of a dtype are floats, complex numbers included.
inline bool is_float(const Dtype& dtype) { return std::strstr(dtype.name, "float") || std::strstr(dtype.name, "complex"); }

/// How many doubles an element has: two for a complex number.
inline std::size_t parts_of(const Dtype& dtype) { return std::strstr(dtype.name, "complex") ? 2 : 1; }

/// A part of an element as a double. Exact but for integers of 64 bits.
inline double as_double(const Dtype& dtype, const void* memory, std::size_t at) {
  const auto* data = static_cast<const unsigned char*>(memory);
  switch (dtype.code) {
    case 1:
    case 14: return read_as<float>(data, at);
    case 2:
    case 9: return data[at];
    case 3: return read_as<std::int8_t>(data, at);
    case 4: return read_as<std::uint16_t>(data, at);
    case 5: return read_as<std::int16_t>(data, at);
    case 6: return read_as<std::int32_t>(data, at);
    case 7: return static_cast<double>(read_as<std::int64_t>(data, at));
    case 10: return small_float(read_as<std::uint16_t>(data, at), 5, 10, 15, false, false);
    case 11:
    case 15: return read_as<double>(data, at);
    case 12: return read_as<std::uint32_t>(data, at);
    case 13: return static_cast<double>(read_as<std::uint64_t>(data, at));
    case 16: return small_float(read_as<std::uint16_t>(data, at), 8, 7, 127, false, false);
    case 17: return small_float(data[at], 4, 3, 7, true, false);
    case 18: return small_float(data[at], 4, 3, 8, true, true);
    case 19: return small_float(data[at], 5, 2, 15, false, false);
    case 20: return small_float(data[at], 5, 2, 16, true, true);
    default: return data[at] == 255 ? std::nan("") : std::ldexp(1.0, data[at] - 127);
  }
}

inline std::string short_number(double value) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return buffer;
}

inline std::string share(std::size_t count, std::size_t of) {
  char buffer[100];
  std::snprintf(buffer, sizeof buffer, "%zu of %zu values (%.1f %%)", count, of,
                100.0 * static_cast<double>(count) / static_cast<double>(of));
  return buffer;
}

/// The place of an element, as Python writes an index.
inline std::string place(const Shape& shape, std::size_t index) {
  Shape at(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    const auto size = static_cast<std::size_t>(shape[axis]);
    at[axis] = static_cast<std::int64_t>(index % size);
    index /= size;
  }
  return sizes_text(at);
}

/// Nothing if `got` is `want`, else what is wrong with it.
inline std::optional<std::string> difference(const Port& port, const void* got, const void* want, double rtol, double atol) {
  const Dtype& dtype = *port.dtype;
  const std::size_t count = port.elements(), parts = parts_of(dtype);
  if (std::memcmp(got, want, port.bytes()) == 0) return std::nullopt;
  std::size_t wrong = 0, odd = 0, worst = 0, first_odd = 0;
  double largest = -1;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* here = static_cast<const unsigned char*>(got) + i * dtype.size;
    const auto* there = static_cast<const unsigned char*>(want) + i * dtype.size;
    if (!is_float(dtype)) {
      if (std::memcmp(here, there, dtype.size) == 0) continue;
      ++wrong;
      const double gap = std::fabs(as_double(dtype, here, 0) - as_double(dtype, there, 0));
      if (gap > largest) largest = gap, worst = i;
      continue;
    }
    double square = 0, size = 0;
    bool strange = false, equal = true;
    for (std::size_t part = 0; part < parts; ++part) {
      const double a = as_double(dtype, here, part), b = as_double(dtype, there, part);
      const bool same = a == b || (std::isnan(a) && std::isnan(b));
      strange = strange || ((!std::isfinite(a) || !std::isfinite(b)) && !same);
      equal = equal && same;
      if (!same) square = std::hypot(square, a - b);
      size = std::hypot(size, b);
    }
    if (strange && odd++ == 0) first_odd = i;
    if (!strange && !equal && square > atol + rtol * size) {
      ++wrong;
      if (square > largest) largest = square, worst = i;
    }
  }
  if (odd != 0) {
    return share(odd, count) + " are NaN or infinite on one side only (first at " + place(port.shape, first_odd) + ")";
  }
  if (wrong == 0) return std::nullopt;
  const auto shown = [&](const void* side) { return short_number(as_double(dtype, side, worst * parts)); };
  const std::string at = "(at " + place(port.shape, worst) + ": exported " + shown(got) + ", traced " + shown(want) + ")";
  if (!is_float(dtype)) return share(wrong, count) + " differ, and they must be equal " + at;
  return share(wrong, count) + " are out of tolerance, by up to " + short_number(largest) + " " + at;
}

}  // namespace leapp::detail
