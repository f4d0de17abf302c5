// What a bundle's YAML says: nodes, ports, wiring. Opens no file. The rules and words are those of src/leapp/bundle/contract_yaml.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "sha256.hpp"
#include "value.hpp"

namespace leapp {

/// The dtypes of ports. The code is ONNX's `TensorProto.DataType`.
struct Dtype {
  const char* name;
  const char* safetensors;
  const char* onnx;  ///< As ONNX Runtime names the element type.
  int code;
  std::size_t size;
};

inline constexpr Dtype dtypes[] = {
    {"float32", "F32", "float", 1, 4},
    {"uint8", "U8", "uint8", 2, 1},
    {"int8", "I8", "int8", 3, 1},
    {"uint16", "U16", "uint16", 4, 2},
    {"int16", "I16", "int16", 5, 2},
    {"int32", "I32", "int32", 6, 4},
    {"int64", "I64", "int64", 7, 8},
    {"bool", "BOOL", "bool", 9, 1},
    {"float16", "F16", "float16", 10, 2},
    {"float64", "F64", "double", 11, 8},
    {"uint32", "U32", "uint32", 12, 4},
    {"uint64", "U64", "uint64", 13, 8},
    {"complex64", "C64", "complex64", 14, 8},
    {"complex128", "C128", "complex128", 15, 16},
    {"bfloat16", "BF16", "bfloat16", 16, 2},
    {"float8_e4m3fn", "F8_E4M3", "float8e4m3fn", 17, 1},
    {"float8_e4m3fnuz", "F8_E4M3FNUZ", "float8e4m3fnuz", 18, 1},
    {"float8_e5m2", "F8_E5M2", "float8e5m2", 19, 1},
    {"float8_e5m2fnuz", "F8_E5M2FNUZ", "float8e5m2fnuz", 20, 1},
    {"float8_e8m0fnu", "F8_E8M0", "float8e8m0fnu", 24, 1},
};

using Shape = std::vector<std::int64_t>;

/// A named input or output of a node.
struct Port {
  std::string name;
  const Dtype* dtype = nullptr;
  Shape shape;
  std::optional<std::string> kind;
  std::vector<Value> element_names;  ///< One entry an axis; empty if the port names nothing.
  std::optional<double> temporal_period_ms;
  std::optional<std::size_t> batch_axis;  ///< The axis that may have any size.
  std::vector<std::pair<std::string, Value>> extra;

  /// What the annotation said under a key of its own, or nullptr.
  const Value* find(std::string_view key) const {
    for (const auto& [name_, value] : extra) {
      if (name_ == key) return &value;
    }
    return nullptr;
  }

  std::size_t elements() const {
    std::size_t count = 1;
    for (const auto size : shape) count *= static_cast<std::size_t>(size);
    return count;
  }
  std::size_t bytes() const { return elements() * dtype->size; }
};

/// The file behind a node. `path` is empty for a node without a model.
struct ModelFile {
  std::optional<std::string> path;
  std::string sha256;
  std::optional<std::string> backend;
};

struct Node {
  std::string name;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  ModelFile model;
};

/// Keys with the keys they lead to, or nodes with their ports, in the order of the file.
using Flow = std::vector<std::pair<std::string, std::vector<std::string>>>;

/// Everything a bundle's YAML says.
struct Contract {
  std::vector<Node> nodes;
  Flow data_flow, feedback_flow, inputs, outputs;
  std::optional<std::string> initial_values;
  Value configs;
  Value system;

  const Node* find(std::string_view name) const {
    for (const Node& node : nodes) {
      if (node.name == name) return &node;
    }
    return nullptr;
  }
};

/// The public name of a port.
inline std::string key_of(std::string_view node, std::string_view port) { return std::string(node) + "/" + std::string(port); }

/// The node and the port of a key. Port names hold no slash, so the last one separates.
inline std::pair<std::string, std::string> split_key(std::string_view key) {
  const std::size_t slash = key.rfind('/');
  if (slash == std::string_view::npos) return {"", std::string(key)};
  return {std::string(key.substr(0, slash)), std::string(key.substr(slash + 1))};
}

inline std::string form(const Port& port) { return std::string(port.dtype->name) + " " + detail::sizes_text(port.shape); }

namespace detail {

inline bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

/// A place in a document: text for keys, numbers for list entries, and keys that are neither.
struct Step {
  enum { key, index, other } kind;
  std::string text;
  std::size_t at = 0;

  Step(const char* name) : kind(key), text(name) {}
  Step(const std::string& name) : kind(key), text(name) {}
  Step(std::size_t place) : kind(index), text(std::to_string(place)), at(place) {}
  explicit Step(const Value& value) : kind(other), text(str(value)) {
    // Python writes numbers as places of a list, whatever they are keys of.
    dotted = !(value.is(Value::Kind::integer) || value.is(Value::Kind::boolean));
  }
  bool dotted = true;
};
using Steps = std::vector<Step>;

class ContractReader {
 public:
  ContractReader(const Value& document, std::string name) : document_(document), name_(std::move(name)) {}

  Contract contract() const {
    mapping(document_, {});
    for (const char* section : {"models", "pipeline", "system information"}) {
      if (document_.find(section) == nullptr) {
        fail({}, std::string("the section '") + section + "' is missing, this is not a complete bundle description");
      }
    }
    Contract made;
    made.system = mapping(*document_.find("system information"), {"system information"});
    check_version(made.system);
    for (const auto& [key, entry] : mapping(*document_.find("models"), {"models"}).entries) {
      const Steps path = {"models", key.text};
      word(key.text, path, true);
      made.nodes.push_back(node(key.text, entry, path));
    }
    pipeline(made, mapping(*document_.find("pipeline"), {"pipeline"}));
    check_wiring(made);
    return made;
  }

 private:
  static Steps join(Steps path, std::initializer_list<Step> more) {
    path.insert(path.end(), more.begin(), more.end());
    return path;
  }

  /// The line on which the value at a path stands, or the nearest enclosing one; 0 if there is none.
  std::size_t line_of(const Steps& path) const {
    const Value* value = &document_;
    std::size_t line = 0;
    for (const Step& step : path) {
      const Value *found = nullptr, *mark = nullptr;
      if (value->is(Value::Kind::mapping) && step.kind == Step::key) {
        for (const auto& [key, item] : value->entries) {
          if (found == nullptr && key.is_text(step.text)) mark = &key, found = &item;
        }
      } else if (value->is(Value::Kind::list) && step.kind == Step::index && step.at < value->items.size()) {
        mark = found = &value->items[step.at];
      }
      if (found == nullptr) break;
      line = mark->line;
      value = found;
    }
    return line;
  }

  [[noreturn]] void fail(const Steps& path, const std::string& what) const {
    std::string dotted, where = name_;
    for (const Step& step : path) {
      const bool brackets = step.kind == Step::index || !step.dotted;
      dotted += brackets ? "[" + step.text + "]" : "." + step.text;
    }
    if (!dotted.empty() && dotted[0] == '.') dotted.erase(0, 1);
    if (const std::size_t line = line_of(path)) where += ", line " + std::to_string(line);
    throw BundleError(path.empty() ? where + ": " + what + "." : where + ": " + dotted + ": " + what + ".");
  }

  /// What Python calls the class of a value.
  static std::string python_kind(const Value& value) {
    switch (value.kind) {
      case Value::Kind::null: return "nothing";
      case Value::Kind::boolean: return "a bool";
      case Value::Kind::integer: return "a int";
      case Value::Kind::real: return "a float";
      case Value::Kind::text: return "a str";
      case Value::Kind::list: return "a list";
      default: return "a dict";
    }
  }

  /// What JSON calls the class of a value.
  static std::string json_kind(const Value& value) {
    switch (value.kind) {
      case Value::Kind::null: return "null";
      case Value::Kind::boolean: return "bool";
      case Value::Kind::integer: return "int";
      case Value::Kind::real: return "float";
      case Value::Kind::text: return "str";
      case Value::Kind::list: return "array";
      default: return "object";
    }
  }

  [[noreturn]] void mismatch(const char* wanted, const Value& value, const Steps& path) const {
    fail(path, std::string("Expected '") + wanted + "', got '" + json_kind(value) + "'");
  }

  const Value& mapping(const Value& value, const Steps& path) const {
    if (!value.is(Value::Kind::mapping)) fail(path, "expected a mapping, got " + python_kind(value));
    for (const auto& [key, item] : value.entries) {
      if (!key.is(Value::Kind::text)) {
        fail(join(path, {Step(key)}), "expected a text key, got " + repr(key) + "; put it in quotes");
      }
    }
    return value;
  }

  void word(const std::string& value, const Steps& path, bool slash = false) const {
    if (value.empty() || has_control(value) || (!slash && value.find('/') != std::string::npos)) {
      fail(path, repr_text(value) + " is not a usable name");
    }
  }

  void check_version(const Value& system) const {
    const Steps path = {"system information", "leapp config version"};
    const Value* found = system.find("leapp config version");
    if (found == nullptr) return;  // the oldest files have none
    const Value& value = *found;
    const std::string version = value.is(Value::Kind::real) ? number_text(value.real) : value.text;
    const auto digits = [](std::string_view part) {
      return !part.empty() && part.size() <= 6 && part.find_first_not_of("0123456789") == std::string_view::npos;
    };
    const std::size_t dot = version.find('.');
    const bool text = value.is(Value::Kind::real) || value.is(Value::Kind::text);
    if (!text || dot == std::string::npos || !digits(std::string_view(version).substr(0, dot)) ||
        !digits(std::string_view(version).substr(dot + 1))) {
      fail(path, "expected a version such as '1.3', got " + (value.is(Value::Kind::real) ? repr_text(version) : repr(value)));
    }
    if (version.substr(0, dot) != "1") fail(path, "version " + version + " is not supported, this leapp reads 1.x");
  }

  Node node(const std::string& name, const Value& value, const Steps& path) const {
    const Value& entry = mapping(value, path);
    for (const char* key : {"inputs", "outputs", "parameters"}) {
      if (entry.find(key) == nullptr) fail(path, std::string("'") + key + "' is missing");
    }
    Node made;
    made.name = name;
    made.inputs = ports(*entry.find("inputs"), join(path, {"inputs"}));
    made.outputs = ports(*entry.find("outputs"), join(path, {"outputs"}));
    made.model = model(*entry.find("parameters"), join(path, {"parameters"}));
    return made;
  }

  std::vector<Port> ports(const Value& value, const Steps& path) const {
    if (!value.is(Value::Kind::list)) fail(path, "expected a list, got " + python_kind(value));
    std::vector<Port> made;
    for (std::size_t i = 0; i < value.items.size(); ++i) made.push_back(port(value.items[i], join(path, {i})));
    std::set<std::string> seen;
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!seen.insert(made[i].name).second) {
        fail(join(path, {i, "name"}), "the port '" + made[i].name + "' is listed twice");
      }
    }
    return made;
  }

  Port port(const Value& value, const Steps& path) const {
    Port made;
    const Value *name = nullptr, *dtype = nullptr, *shape = nullptr, *batch_axis = nullptr;
    std::string type = "tensor";
    for (const auto& [key, item] : mapping(value, path).entries) {
      const Steps at = join(path, {key.text});
      if (key.text == "name") {
        name = &expect_text(item, at);
      } else if (key.text == "dtype") {
        dtype = &expect_text(item, at);
      } else if (key.text == "shape") {
        shape = &expect_list(item, "array", at);
        for (std::size_t i = 0; i < item.items.size(); ++i) {
          if (!item.items[i].is(Value::Kind::integer)) mismatch("int", item.items[i], join(at, {i}));
        }
      } else if (key.text == "type") {
        type = expect_text(item, at).text;
      } else if (key.text == "kind") {
        made.kind = optional_text(item, at);
      } else if (key.text == "element_names") {
        if (!item.is(Value::Kind::null)) made.element_names = expect_list(item, "array | null", at).items;
      } else if (key.text == "temporal_period_ms") {
        if (!item.number() && !item.is(Value::Kind::null)) mismatch("int | float | null", item, at);
        made.temporal_period_ms = item.number();
      } else if (key.text == "batch_axis") {
        if (!item.is(Value::Kind::integer) && !item.is(Value::Kind::null)) mismatch("int | null", item, at);
        batch_axis = item.is(Value::Kind::null) ? nullptr : &item;
      } else {
        made.extra.emplace_back(key.text, item);
      }
    }
    for (const auto& [key, found] : {std::pair{"name", name}, {"dtype", dtype}, {"shape", shape}}) {
      if (found == nullptr) fail(path, std::string("Object missing required field '") + key + "'");
    }
    made.name = name->text;
    word(made.name, join(path, {"name"}));
    for (const Dtype& known : dtypes) {
      if (dtype->text == known.name) made.dtype = &known;
    }
    if (made.dtype == nullptr) fail(join(path, {"dtype"}), "unknown dtype " + repr_text(dtype->text));
    if (type != "tensor") fail(join(path, {"type"}), "expected 'tensor', got " + repr_text(type));
    if (!possible(*shape, made.shape)) fail(join(path, {"shape"}), repr(*shape) + " is not a possible shape");
    if (batch_axis != nullptr) {
      const auto axis = batch_axis->integer();
      if (!axis || *axis < 0 || *axis >= static_cast<std::int64_t>(made.shape.size()) ||
          made.shape[static_cast<std::size_t>(*axis)] == 0) {
        fail(join(path, {"batch_axis"}), batch_axis->text + " is no axis of the shape " + repr(*shape) + " that has rows");
      }
      made.batch_axis = static_cast<std::size_t>(*axis);
    }
    return made;
  }

  /// Whether a shape has no negative size and at most 2^40 elements.
  static bool possible(const Value& listed, Shape& shape) {
    constexpr std::int64_t most = std::int64_t{1} << 40;
    for (const Value& item : listed.items) {
      const auto size = item.integer();
      if (!size || *size < 0) return false;
      shape.push_back(*size);
    }
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
    std::int64_t count = 1;
    for (const auto size : shape) {
      if (size > most / count) return false;
      count *= size;
    }
    return true;
  }

  const Value& expect_text(const Value& value, const Steps& path) const {
    if (!value.is(Value::Kind::text)) mismatch("str", value, path);
    return value;
  }

  std::optional<std::string> optional_text(const Value& value, const Steps& path) const {
    if (value.is(Value::Kind::null)) return std::nullopt;
    if (!value.is(Value::Kind::text)) mismatch("str | null", value, path);
    return value.text;
  }

  const Value& expect_list(const Value& value, const char* wanted, const Steps& path) const {
    if (!value.is(Value::Kind::list)) mismatch(wanted, value, path);
    return value;
  }

  ModelFile model(const Value& value, const Steps& path) const {
    const Value& entry = mapping(value, path);
    for (const char* key : {"model_path", "md5sum", "sha256sum", "backend"}) {
      if (entry.find(key) == nullptr) fail(path, std::string("'") + key + "' is missing");
    }
    ModelFile made;
    std::optional<std::string> sha256;
    for (const auto& [key, item] : entry.entries) {
      const Steps at = join(path, {key.text});
      if (key.text == "model_path") made.path = optional_text(item, at);
      if (key.text == "md5sum") optional_text(item, at);
      if (key.text == "sha256sum") sha256 = optional_text(item, at);
      if (key.text == "backend") made.backend = optional_text(item, at);
      if (key.text == "warp_segments" && !item.is(Value::Kind::integer)) mismatch("int", item, at);
    }
    if (made.path && !is_sha256(sha256.value_or(""))) {
      fail(join(path, {"sha256sum"}), "expected 64 hexadecimal digits, got " + (sha256 ? repr_text(*sha256) : "None"));
    }
    made.sha256 = sha256.value_or("");
    return made;
  }

  void pipeline(Contract& made, const Value& entry) const {
    const Value* older = entry.find("feedback_connections");
    if (older != nullptr && older->is(Value::Kind::null)) older = nullptr;
    const Value* newer = entry.find("feedback_flow");
    if (older != nullptr && newer != nullptr && !same_value(*older, *newer)) {
      fail({"pipeline", "feedback_connections"}, "says something else than 'feedback_flow'");
    }
    for (const char* key : {"data_flow", "inputs", "outputs"}) {
      if (entry.find(key) == nullptr) fail({"pipeline"}, std::string("'") + key + "' is missing");
    }
    for (const auto& [key, item] : entry.entries) {
      const Steps at = {"pipeline", key.text};
      if (key.text == "data_flow") made.data_flow = flow(item, at);
      if (key.text == "feedback_flow") made.feedback_flow = flow(item, at);
      if (key.text == "inputs") made.inputs = flow(item, at);
      if (key.text == "outputs") made.outputs = flow(item, at);
      if (key.text == "initial_values") made.initial_values = optional_text(item, at);
      if (key.text == "configs" && !item.is(Value::Kind::null)) {
        if (!item.is(Value::Kind::mapping)) mismatch("object | null", item, at);
        for (const auto& [inner, unused] : item.entries) text_key(inner, "configs");
        made.configs = item;
      }
    }
    if (older != nullptr && newer == nullptr) made.feedback_flow = flow(*older, {"pipeline", "feedback_flow"});
  }

  void text_key(const Value& key, const std::string& section) const {
    if (key.is(Value::Kind::text)) return;
    fail({"pipeline"}, "Expected 'str', got '" + json_kind(key) + "' - at 'key' in '$." + section + "'");
  }

  Flow flow(const Value& value, const Steps& path) const {
    if (!value.is(Value::Kind::mapping)) mismatch("object", value, path);
    Flow made;
    for (const auto& [key, targets] : value.entries) {
      text_key(key, path.back().text);
      const Steps at = join(path, {"..."});
      std::vector<std::string> names;
      expect_list(targets, "array", at);
      for (std::size_t i = 0; i < targets.items.size(); ++i) {
        names.push_back(expect_text(targets.items[i], join(at, {i})).text);
      }
      made.emplace_back(key.text, std::move(names));
    }
    return made;
  }

  using Ports = std::map<std::string, const Port*>;

  [[noreturn]] void no_such(const char* what, const std::string& key, const Ports& known, const Steps& path) const {
    std::string listed;
    int count = 0;
    for (const auto& [name, unused] : known) {
      if (count++ < 8) listed += (listed.empty() ? "" : ", ") + name;
    }
    fail(path, std::string("no ") + what + " is called '" + key + "' (known: " + (listed.empty() ? "none" : listed) + ")");
  }

  void check_wiring(const Contract& made) const {
    Ports inputs, outputs;
    std::vector<std::string> input_keys, output_keys;
    for (const Node& node : made.nodes) {
      for (const Port& port : node.inputs)
        input_keys.push_back(key_of(node.name, port.name)), inputs[input_keys.back()] = &port;
      for (const Port& port : node.outputs) {
        output_keys.push_back(key_of(node.name, port.name)), outputs[output_keys.back()] = &port;
      }
    }
    std::map<std::string, std::string> fed;
    std::set<std::string> used;
    const auto feed = [&](const std::string& target, const std::string& source, const Steps& path) {
      const auto [at, fresh] = fed.emplace(target, source);
      if (!fresh) fail(path, "the input '" + target + "' is fed twice, from " + at->second + " and from " + source);
    };
    for (const auto& [section, flow] : {std::pair{"data_flow", &made.data_flow}, {"feedback_flow", &made.feedback_flow}}) {
      for (const auto& [source, targets] : *flow) {
        const Steps path = {"pipeline", section, source};
        if (outputs.count(source) == 0) no_such("output", source, outputs, path);
        used.insert(source);
        for (std::size_t i = 0; i < targets.size(); ++i) {
          const Steps at = join(path, {i});
          if (inputs.count(targets[i]) == 0) no_such("input", targets[i], inputs, at);
          check_edge(source, *outputs[source], targets[i], *inputs[targets[i]], at);
          feed(targets[i], "'" + source + "'", at);
        }
      }
    }
    for (const auto& [node, listed] : made.inputs) {
      for (std::size_t i = 0; i < listed.size(); ++i) {
        const Steps at = {"pipeline", "inputs", node, i};
        const std::string key = key_of(node, listed[i]);
        if (inputs.count(key) == 0) no_such("input", key, inputs, at);
        feed(key, "outside", at);
      }
    }
    for (const auto& [node, listed] : made.outputs) {
      for (std::size_t i = 0; i < listed.size(); ++i) {
        const Steps at = {"pipeline", "outputs", node, i};
        const std::string key = key_of(node, listed[i]);
        if (outputs.count(key) == 0) no_such("output", key, outputs, at);
        const auto end = listed.begin() + static_cast<std::ptrdiff_t>(i);
        if (std::find(listed.begin(), end, listed[i]) != end) fail(at, "'" + key + "' is listed twice");
        used.insert(key);
      }
    }
    for (const std::string& key : input_keys) {
      if (fed.count(key) == 0) fail({"pipeline"}, "nothing feeds the input '" + key + "'");
    }
    for (const std::string& key : output_keys) {
      if (used.count(key) == 0) {
        fail({"pipeline"}, "the output '" + key + "' goes nowhere; list it in a flow or in pipeline.outputs");
      }
    }
  }

  void check_edge(const std::string& source, const Port& out, const std::string& target, const Port& into,
                  const Steps& path) const {
    const auto axis = [](const Port& port) { return port.batch_axis ? std::to_string(*port.batch_axis) : "None"; };
    if (out.batch_axis != into.batch_axis) {
      fail(path, "'" + source + "' has the batch_axis " + axis(out) + ", but '" + target + "' has " + axis(into));
    }
    if (out.dtype != into.dtype || out.shape != into.shape) {
      fail(path, "'" + source + "' gives " + form(out) + ", but '" + target + "' takes " + form(into));
    }
  }

  const Value& document_;
  std::string name_;
};

}  // namespace detail

/// The contract that a document describes. `name` is the file, for messages.
inline Contract contract_of(const Value& document, const std::string& name) {
  return detail::ContractReader(document, name).contract();
}

}  // namespace leapp
