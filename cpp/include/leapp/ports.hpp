// The memory of ports: what a caller writes and reads, what engines are given, element names as an order.
#pragma once

#include <algorithm>
#include <complex>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compare.hpp"
#include "description.hpp"
#include "safetensors.hpp"

namespace leapp {

// Port dtypes without a C++ type of their own, as their bits.
struct float16 {
  std::uint16_t bits;
};
struct bfloat16 {
  std::uint16_t bits;
};
struct float8_e4m3fn {
  std::uint8_t bits;
};
struct float8_e4m3fnuz {
  std::uint8_t bits;
};
struct float8_e5m2 {
  std::uint8_t bits;
};
struct float8_e5m2fnuz {
  std::uint8_t bits;
};
struct float8_e8m0fnu {
  std::uint8_t bits;
};

namespace detail {

template <class T>
constexpr int code_of = 0;
template <>
inline constexpr int code_of<float> = 1;
template <>
inline constexpr int code_of<std::uint8_t> = 2;
template <>
inline constexpr int code_of<std::int8_t> = 3;
template <>
inline constexpr int code_of<std::uint16_t> = 4;
template <>
inline constexpr int code_of<std::int16_t> = 5;
template <>
inline constexpr int code_of<std::int32_t> = 6;
template <>
inline constexpr int code_of<std::int64_t> = 7;
template <>
inline constexpr int code_of<bool> = 9;
template <>
inline constexpr int code_of<float16> = 10;
template <>
inline constexpr int code_of<double> = 11;
template <>
inline constexpr int code_of<std::uint32_t> = 12;
template <>
inline constexpr int code_of<std::uint64_t> = 13;
template <>
inline constexpr int code_of<std::complex<float>> = 14;
template <>
inline constexpr int code_of<std::complex<double>> = 15;
template <>
inline constexpr int code_of<bfloat16> = 16;
template <>
inline constexpr int code_of<float8_e4m3fn> = 17;
template <>
inline constexpr int code_of<float8_e4m3fnuz> = 18;
template <>
inline constexpr int code_of<float8_e5m2> = 19;
template <>
inline constexpr int code_of<float8_e5m2fnuz> = 20;
template <>
inline constexpr int code_of<float8_e8m0fnu> = 24;

template <class T>
const Dtype& dtype_of() {
  static_assert(code_of<T> != 0, "no port has this element type");
  return *std::find_if(std::begin(dtypes), std::end(dtypes), [](const Dtype& known) { return known.code == code_of<T>; });
}

/// Zeroed memory, aligned as engines like it.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t size)
      : data_(static_cast<unsigned char*>(::operator new(std::max<std::size_t>(size, 1), std::align_val_t{64}))), size_(size) {
    std::memset(data_.get(), 0, std::max<std::size_t>(size, 1));
  }
  unsigned char* get() const { return data_.get(); }
  std::size_t size() const { return size_; }
  void copy_from(const Memory& other) { std::memcpy(get(), other.get(), size_); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  struct Free {
    void operator()(unsigned char* data) const { ::operator delete(data, std::align_val_t{64}); }
  };
  std::unique_ptr<unsigned char, Free> data_;
  std::size_t size_ = 0;
};

/// Elements of one axis put into another order.
struct Reordering {
  std::size_t axis = 0;
  std::vector<std::size_t> places;  // element i of the result is element places[i] of the source

  void apply(const Port& port, const unsigned char* from, unsigned char* to) const {
    std::size_t inner = port.dtype->size, outer = 1;
    for (std::size_t i = 0; i < port.shape.size(); ++i) {
      if (i < axis) outer *= static_cast<std::size_t>(port.shape[i]);
      if (i > axis) inner *= static_cast<std::size_t>(port.shape[i]);
    }
    const std::size_t row = inner * places.size();
    for (std::size_t block = 0; block < outer; ++block) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        std::memcpy(to + block * row + i * inner, from + block * row + places[i] * inner, inner);
      }
    }
  }
};

/// The memory of one port, and what a caller did to it since the last step.
struct Slot {
  std::string key;
  Port port;       // with the present number of rows
  Memory memory;   // what engines read and write
  Memory face;     // what the caller sees, if it is in another order or a state to come
  Memory initial;  // of a state
  Memory before;   // of a state, while a step runs on one that was given
  Reordering order;
  bool bound = false;
  bool state = false;
  bool given = false;
  bool held = false;

  unsigned char* visible() const { return face ? face.get() : memory.get(); }
};

}  // namespace detail

/// An input of a pipeline: memory to write before a step. Get it once, use it in every step.
template <class T>
class Input {
 public:
  std::size_t size() const { return slot_->port.elements(); }

  /// The memory, for all `size()` elements to be written. Counts as given for the next step.
  T* write() {
    slot_->given = true;
    return reinterpret_cast<T*>(slot_->visible());
  }

  /// Copy values. Their number must be that of the port.
  void set(const T* values, std::size_t count) {
    if (count != size()) {
      throw InputError("Input " + detail::repr_text(slot_->key) + ": expected " + form(slot_->port) + ", got " +
                       slot_->port.dtype->name + " [" + std::to_string(count) + "].");
    }
    if (count != 0) std::memcpy(write(), values, count * sizeof(T));
    slot_->given = true;
  }
  template <class Container>
  void set(const Container& values) {
    set(values.data(), values.size());
  }

 private:
  friend class Pipeline;
  explicit Input(detail::Slot* slot) : slot_(slot) {}
  detail::Slot* slot_;
};

/// An output of a pipeline: memory to read after a step. The next step overwrites it.
template <class T>
class Output {
 public:
  std::size_t size() const { return slot_->port.elements(); }
  const T* data() const { return reinterpret_cast<const T*>(slot_->visible()); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  const T& operator[](std::size_t index) const { return data()[index]; }

 private:
  friend class Pipeline;
  explicit Output(const detail::Slot* slot) : slot_(slot) {}
  const detail::Slot* slot_;
};

/// One port as a deployer sees it.
struct PortInfo {
  std::string key, node, name;
  std::string role;  ///< `input`, `output` or `feedback`.
  std::optional<std::string> kind;
  std::vector<std::string> element_names;  ///< Without temporal and unnamed axes.
  std::optional<Value> units, limits;
  Shape shape;
  std::string dtype;
  std::optional<double> temporal_period_ms;
  std::optional<std::size_t> batch_axis;
  std::vector<std::pair<std::string, Value>> extra;
};

namespace detail {

inline bool is_listed(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

inline PortInfo info(const Slot& slot, const std::string& role) {
  const auto [node, name] = split_key(slot.key);
  const Port& port = slot.port;
  PortInfo made{
      slot.key,        node,      name, role, port.kind, {}, {}, {}, port.shape, port.dtype->name, port.temporal_period_ms,
      port.batch_axis, port.extra};
  for (const Value& axis : port.element_names) {
    for (const Value& element : axis.items) made.element_names.push_back(str(element));
  }
  for (const char* spelling : {"unit", "units"}) {
    if (const Value* units = port.find(spelling)) made.units = *units;
  }
  if (const Value* limits = port.find("limits")) made.limits = *limits;
  return made;
}

/// The initial value of a state for the number of rows of its port.
inline Memory spread(const std::string& key, const RawTensor& initial, const Port& port) {
  Memory made(port.bytes());
  if (initial.shape == port.shape || !port.batch_axis) {
    if (!initial.data.empty()) std::memcpy(made.get(), initial.data.data(), initial.data.size());
    return made;
  }
  std::size_t inner = port.dtype->size, outer = 1;
  for (std::size_t axis = 0; axis < port.shape.size(); ++axis) {
    if (axis < *port.batch_axis) outer *= static_cast<std::size_t>(port.shape[axis]);
    if (axis > *port.batch_axis) inner *= static_cast<std::size_t>(port.shape[axis]);
  }
  const auto had = static_cast<std::size_t>(initial.shape[*port.batch_axis]);
  const auto rows = static_cast<std::size_t>(port.shape[*port.batch_axis]);
  for (std::size_t block = 0; block < outer && inner != 0; ++block) {
    const unsigned char* first = initial.data.data() + block * had * inner;
    for (std::size_t row = 1; row < had; ++row) {
      if (std::memcmp(first, first + row * inner, inner) != 0) {
        throw InputError("State " + repr_text(key) + " begins with a different value in each of " + std::to_string(had) +
                         " rows, so a batch of " + std::to_string(rows) + " rows is not possible.");
      }
    }
    for (std::size_t row = 0; row < rows; ++row) std::memcpy(made.get() + (block * rows + row) * inner, first, inner);
  }
  return made;
}

inline void check_names(const std::string& key, const std::vector<std::string>& wanted, const std::vector<std::string>& given) {
  std::vector<std::string> missing, extra, twice;
  for (const std::string& name : wanted) {
    if (!is_listed(given, name)) missing.push_back(name);
  }
  for (const std::string& name : given) {
    if (!is_listed(wanted, name)) extra.push_back(name);
    if (std::count(given.begin(), given.end(), name) > 1 && !is_listed(twice, name)) twice.push_back(name);
  }
  std::sort(twice.begin(), twice.end());
  std::string parts;
  for (const auto& [what, names] : {std::pair{"missing ", &missing}, {"extra ", &extra}, {"twice ", &twice}}) {
    if (!names->empty()) parts += (parts.empty() ? "" : ", ") + (what + list_text(*names));
  }
  if (parts.empty() && given.size() != wanted.size()) parts = "twice";  // two elements of the port share a name
  if (!parts.empty()) {
    throw InputError("The names bound to " + repr_text(key) + " do not fit its elements: " + parts + ".");
  }
}

/// The axis of a port whose elements have the given names, and the order that takes values to it (`entering`) or from it.
inline Reordering reordering(const std::string& key, const Port& port, const std::vector<std::string>& given, bool entering) {
  const std::size_t entries = port.element_names.size();
  std::vector<std::pair<std::ptrdiff_t, std::vector<std::string>>> axes;
  for (std::size_t i = 0; i < entries; ++i) {
    if (!port.element_names[i].is(Value::Kind::list) || port.element_names[i].items.empty()) continue;
    std::vector<std::string> names;
    for (const Value& name : port.element_names[i].items) names.push_back(str(name));
    axes.emplace_back(static_cast<std::ptrdiff_t>(port.shape.size() + i) - static_cast<std::ptrdiff_t>(entries), names);
  }
  if (axes.empty()) {
    throw InputError(repr_text(key) + " has no element names. Leave it out of bind, or give them when exporting.");
  }
  if (axes.size() > 1) {
    std::string known;
    for (const auto& [axis, names] : axes) known += (known.empty() ? "" : ", ") + list_text(names);
    const std::set<std::string> wanted(given.begin(), given.end());
    const auto other = [&](const auto& axis) {
      return std::set<std::string>(axis.second.begin(), axis.second.end()) != wanted;
    };
    axes.erase(std::remove_if(axes.begin(), axes.end(), other), axes.end());
    if (axes.size() != 1) {
      throw InputError("The names bound to " + repr_text(key) + " are those of no axis, or of several. Its axes have [" +
                       known + "].");
    }
  }
  const auto& [axis, names] = axes[0];
  if (axis < 0 || port.shape[static_cast<std::size_t>(axis)] != static_cast<std::int64_t>(names.size())) {
    throw BundleError(repr_text(key) + " has " + std::to_string(names.size()) + " element names for its shape " +
                      sizes_text(port.shape) + ".");
  }
  check_names(key, names, given);
  Reordering made{static_cast<std::size_t>(axis), std::vector<std::size_t>(names.size())};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto there = static_cast<std::size_t>(std::find(given.begin(), given.end(), names[i]) - given.begin());
    (entering ? made.places[i] : made.places[there]) = entering ? there : i;
  }
  return made;
}

inline void check_finite(const Slot& slot) {
  const Dtype& dtype = *slot.port.dtype;
  if (!is_float(dtype)) return;
  for (std::size_t i = 0; i < slot.port.elements() * parts_of(dtype); ++i) {
    if (!std::isfinite(as_double(dtype, slot.visible(), i))) {
      throw InputError("Input " + repr_text(slot.key) + " holds NaN or infinity.");
    }
  }
}

/// Normal floats, integers from 0 to 63, random truth values.
inline void randomize(Slot& slot, std::mt19937& generator) {
  std::normal_distribution<double> normal;
  unsigned char* to = slot.visible();
  for (std::size_t i = 0; i < slot.port.elements() * parts_of(*slot.port.dtype); ++i) {
    switch (slot.port.dtype->code) {
      case 1:
      case 14: reinterpret_cast<float*>(to)[i] = static_cast<float>(normal(generator)); break;
      case 11:
      case 15: reinterpret_cast<double*>(to)[i] = normal(generator); break;
      case 9: to[i] = generator() & 1u; break;
      default:
        std::memset(to + i * slot.port.dtype->size, 0, slot.port.dtype->size);
        to[i * slot.port.dtype->size] = generator() & 63u;
    }
  }
}

}  // namespace detail

}  // namespace leapp
