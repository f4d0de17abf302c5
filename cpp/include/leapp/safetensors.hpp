// Tensors in files: the safetensors format, and what a bundle keeps in it, which is initial values and samples.
//
// Initial values are keyed `node/port`; samples `pass/in/node/port` and `pass/out/node/port`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "description.hpp"
#include "files.hpp"
#include "json.hpp"

namespace leapp {

/// A value as it lies in a file: little-endian, row after row.
struct RawTensor {
  const Dtype* dtype = nullptr;
  Shape shape;
  Bytes data;
};

/// The values of one node in one pass, by port name.
struct Sample {
  std::map<std::string, RawTensor> inputs, outputs;
};

namespace detail {

/// A list of numbers from 0 on; larger ones than 64 bits hold become the largest. False if it is something else.
inline bool naturals(const Value* value, std::vector<std::int64_t>& made) {
  if (value == nullptr || !value->is(Value::Kind::list) || value->items.size() > 64) return false;
  for (const Value& item : value->items) {
    if (!item.is(Value::Kind::integer) || item.text[0] == '-') return false;
    made.push_back(item.integer().value_or(INT64_MAX));
  }
  return true;
}

/// The bytes that a shape needs; the largest number there is if 64 bits do not hold it.
inline std::int64_t bytes_needed(const Shape& shape, std::size_t item) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  auto count = static_cast<std::int64_t>(item);
  for (const auto size : shape) {
    if (size > INT64_MAX / count) return INT64_MAX;
    count *= size;
  }
  return count;
}

}  // namespace detail

/// The tensors of a safetensors file, by name. `what` is the file, for messages.
inline std::map<std::string, RawTensor> decode_safetensors(const Bytes& data, const std::string& what) {
  constexpr std::uint64_t max_header = 16 * 1024 * 1024;
  std::uint64_t size = max_header + 1;
  if (data.size() >= 8) {
    size = 0;
    for (int i = 7; i >= 0; --i) size = size << 8 | data[static_cast<std::size_t>(i)];
  }
  if (data.size() < 8 || size > std::min<std::uint64_t>(max_header, data.size() - 8)) {
    throw BundleError(what + ": not a complete safetensors file.");
  }
  const std::string_view text(reinterpret_cast<const char*>(data.data()) + 8, size);
  Value header;
  try {
    if (detail::not_utf8(text) != std::string_view::npos) throw detail::JsonError{"not UTF-8 text"};
    header = detail::JsonReader(text).document();
  } catch (const detail::JsonError& error) {
    throw BundleError(what + ": the header is damaged: " + error.reason + ".");
  }
  if (!header.is(Value::Kind::mapping)) throw BundleError(what + ": the header is damaged.");
  const auto body = static_cast<std::int64_t>(data.size() - 8 - size);
  std::map<std::string, RawTensor> tensors;
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (const auto& [name, entry] : header.entries) {
    if (name.text == "__metadata__") continue;
    RawTensor tensor;
    std::vector<std::int64_t> offsets;
    const Value* dtype = entry.find("dtype");
    for (const Dtype& known : dtypes) {
      if (dtype != nullptr && dtype->is_text(known.safetensors)) tensor.dtype = &known;
    }
    if (tensor.dtype == nullptr || !detail::naturals(entry.find("shape"), tensor.shape) ||
        !detail::naturals(entry.find("data_offsets"), offsets) || offsets.size() != 2 || offsets[0] > offsets[1]) {
      throw BundleError(what + ": '" + name.text + "' is not described as a tensor.");
    }
    if (offsets[1] > body || offsets[1] - offsets[0] != detail::bytes_needed(tensor.shape, tensor.dtype->size)) {
      throw BundleError(what + ": '" + name.text + "' does not have the bytes its shape needs.");
    }
    spans.emplace_back(offsets[0], offsets[1]);
    const auto begin = data.begin() + 8 + static_cast<std::ptrdiff_t>(size);
    tensor.data.assign(begin + offsets[0], begin + offsets[1]);
    tensors.emplace(name.text, std::move(tensor));
  }
  std::sort(spans.begin(), spans.end());
  std::int64_t position = 0;
  for (const auto& [start, end] : spans) {
    if (start != position) throw BundleError(what + ": the tensors overlap or leave holes.");
    position = end;
  }
  if (position != body) throw BundleError(what + ": the file is longer than its tensors.");
  return tensors;
}

/// Refuse initial values that do not belong to the fed-back inputs of a contract, one by one.
inline void check_initial_values(const std::map<std::string, RawTensor>& values, const Contract& contract,
                                 const std::string& what) {
  std::map<std::string, const Port*> inputs;
  for (const Node& node : contract.nodes) {
    for (const Port& port : node.inputs) inputs[key_of(node.name, port.name)] = &port;
  }
  std::vector<std::string> wanted;
  for (const auto& [source, targets] : contract.feedback_flow) wanted.insert(wanted.end(), targets.begin(), targets.end());
  for (const auto& [name, value] : values) {
    if (std::find(wanted.begin(), wanted.end(), name) == wanted.end()) {
      throw BundleError(what + ": '" + name + "' is not a fed-back input of this pipeline.");
    }
  }
  for (const std::string& name : wanted) {
    const auto found = values.find(name);
    if (found == values.end()) throw BundleError(what + ": the initial value of '" + name + "' is missing.");
    const Port& port = *inputs.at(name);
    const RawTensor& value = found->second;
    if (value.dtype != port.dtype || value.shape != port.shape) {
      throw BundleError(what + ": '" + name + "' is " + value.dtype->name + " " + detail::sizes_text(value.shape) +
                        ", but the port is " + form(port) + ".");
    }
  }
}

namespace detail {

inline void check_sample(const std::map<std::string, RawTensor>& values, const std::vector<Port>& ports,
                         const std::string& where) {
  const auto text = [](const Dtype& dtype, const Shape& shape) {
    std::string sizes;
    for (const auto size : shape) sizes += std::to_string(size) + (shape.size() == 1 ? "," : ", ");
    if (shape.size() > 1) sizes.resize(sizes.size() - 2);
    return "('" + std::string(dtype.name) + "', (" + sizes + "))";
  };
  for (const Port& port : ports) {
    const auto found = values.find(port.name);
    if (found != values.end() && found->second.dtype == port.dtype && found->second.shape == port.shape) continue;
    const std::string got = found == values.end() ? "None" : text(*found->second.dtype, found->second.shape);
    throw BundleError(where + ": port '" + port.name + "' is " + got + ", expected " + text(*port.dtype, port.shape) + ".");
  }
  for (const auto& [name, value] : values) {
    const bool known =
        std::any_of(ports.begin(), ports.end(), [&name_ = name](const Port& port) { return port.name == name_; });
    if (!known) {
      throw BundleError(where + ": port '" + name + "' is " + text(*value.dtype, value.shape) + ", expected None.");
    }
  }
}

}  // namespace detail

/// The passes of every node, checked against the ports of a contract.
inline std::map<std::string, std::vector<Sample>> decode_samples(const Bytes& data, const Contract& contract,
                                                                 const std::string& what) {
  std::map<std::string, std::map<std::size_t, Sample>> passes;
  for (auto& [name, value] : decode_safetensors(data, what)) {
    const std::size_t first = std::min(name.find('/'), name.size()), second = std::min(name.find('/', first + 1), name.size());
    const std::string index = name.substr(0, first);
    const std::string side = first < name.size() ? name.substr(first + 1, second - first - 1) : "";
    const auto [node, port] = split_key(second < name.size() ? name.substr(second + 1) : "");
    const bool number = !index.empty() && index.size() < 7 && index.find_first_not_of("0123456789") == std::string::npos;
    if (!number || (side != "in" && side != "out")) throw BundleError(what + ": '" + name + "' is not a sample.");
    if (contract.find(node) == nullptr) throw BundleError(what + ": '" + name + "' belongs to no node of this pipeline.");
    Sample& sample = passes[node][std::stoul(index)];
    (side == "out" ? sample.outputs : sample.inputs)[port] = value;
  }
  std::map<std::string, std::vector<Sample>> result;
  for (auto& [node, by_index] : passes) {
    if (by_index.rbegin()->first + 1 != by_index.size()) {
      throw BundleError(what + ": a pass of node '" + node + "' is missing.");
    }
    const Node& described = *contract.find(node);
    for (auto& [number, sample] : by_index) {
      const std::string where = what + ": pass " + std::to_string(number) + " of node '" + node + "'";
      detail::check_sample(sample.inputs, described.inputs, where);
      detail::check_sample(sample.outputs, described.outputs, where);
      result[node].push_back(std::move(sample));
    }
  }
  return result;
}

}  // namespace leapp
