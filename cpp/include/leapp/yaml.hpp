// A YAML document read into plain data, with bounds.
//
// libyaml cuts the text into events, as it does for the Python reader (PyYAML's CSafeLoader): both see the same events, so the
// rules below are all that has to agree. They are those of src/leapp/bundle/yaml_text.py.
#pragma once

#include <locale.h>
#include <yaml.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "errors.hpp"
#include "value.hpp"

namespace leapp {

namespace detail {

inline constexpr std::size_t max_description = 4 * 1024 * 1024;
inline constexpr std::size_t max_text = 4 * max_description;  // of all values together, aliases included
inline constexpr std::size_t max_depth = 40;
inline constexpr std::size_t max_values = 200000;
inline constexpr std::size_t max_number = 400;

inline bool only_has(std::string_view text, std::string_view allowed) {
  return text.find_first_not_of(allowed) == std::string_view::npos;
}

inline std::string_view without_sign(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return text;
}

/// Whether `:59` groups of base 60 follow each other up to the end; `[0-5]?[0-9]` each.
inline bool base60(std::string_view text) {
  if (text.empty()) return false;
  while (!text.empty()) {
    if (text[0] != ':') return false;
    text.remove_prefix(1);
    const std::size_t size = std::min(text.find(':'), text.size());
    if (size == 0 || size > 2 || !only_has(text.substr(0, size), "0123456789") || (size == 2 && text[0] > '5')) return false;
    text.remove_prefix(size);
  }
  return true;
}

/// Whether YAML 1.1, as PyYAML resolves it, takes plain text for an integer.
inline bool looks_integer(std::string_view text) {
  text = without_sign(text);
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  if (text[0] == '0') {
    const std::string_view rest = text.substr(1);
    if (rest.size() > 1 && rest[0] == 'b') return only_has(rest.substr(1), "01_");
    if (rest.size() > 1 && rest[0] == 'x') return only_has(rest.substr(1), "0123456789abcdefABCDEF_");
    return only_has(rest, "01234567_");
  }
  const std::size_t end = std::min(text.find_first_not_of("0123456789_"), text.size());
  return end == text.size() || base60(text.substr(end));
}

/// `[eE][-+][0-9]+`, or nothing.
inline bool looks_exponent(std::string_view text) {
  if (text.empty()) return true;
  return text.size() > 2 && (text[0] == 'e' || text[0] == 'E') && (text[1] == '-' || text[1] == '+') &&
         only_has(text.substr(2), "0123456789");
}

inline bool looks_real(std::string_view text) {
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return true;
  const std::string_view bare = without_sign(text);
  if (bare == ".inf" || bare == ".Inf" || bare == ".INF") return true;
  if (bare.empty()) return false;
  if (bare[0] == '.') {
    if (bare.size() != text.size() || bare.size() < 2 || bare[1] < '0' || bare[1] > '9') return false;
    return looks_exponent(bare.substr(std::min(bare.find_first_not_of("0123456789_", 1), bare.size())));
  }
  if (bare[0] < '0' || bare[0] > '9') return false;
  const std::size_t dot = bare.find('.');
  if (dot == std::string_view::npos) return false;
  const std::size_t after = std::min(bare.find_first_not_of("0123456789_", dot + 1), bare.size());
  const std::size_t before = bare.find_first_not_of("0123456789_");
  if (before == dot) return looks_exponent(bare.substr(after));
  return base60(bare.substr(before, dot - before)) && after == bare.size();
}

/// Decimal digits times a factor plus an addend, for integers of any size. Digits stand lowest first.
inline void multiply_add(std::string& digits, unsigned factor, unsigned add) {
  unsigned carry = add;
  for (char& digit : digits) {
    carry += static_cast<unsigned>(digit - '0') * factor;
    digit = static_cast<char>('0' + carry % 10);
    carry /= 10;
  }
  for (; carry != 0; carry /= 10) digits += static_cast<char>('0' + carry % 10);
}

/// The decimal text of what `looks_integer` accepted; empty if no digit is left.
inline std::string integer_text(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  const bool negative = text[0] == '-';
  std::string_view rest = without_sign(text);
  unsigned base = 10;
  if (rest.size() > 1 && rest[0] == '0') {
    base = rest[1] == 'b' ? 2 : rest[1] == 'x' ? 16 : 8;
    rest.remove_prefix(base == 8 ? 1 : 2);
  }
  if (rest.empty()) return "";
  std::string digits = "0";
  if (rest.find(':') != std::string_view::npos) {
    for (std::size_t at = 0; at <= rest.size();) {
      const std::size_t end = std::min(rest.find(':', at), rest.size());
      std::string part = "0";
      for (const char c : rest.substr(at, end - at)) multiply_add(part, 10, static_cast<unsigned>(c - '0'));
      multiply_add(digits, 60, 0);
      // Only the first group can be long, and nothing stands before it.
      if (at == 0) {
        digits = part;
      } else {
        unsigned small = 0;
        for (auto digit = part.rbegin(); digit != part.rend(); ++digit)
          small = small * 10 + static_cast<unsigned>(*digit - '0');
        multiply_add(digits, 1, small);
      }
      at = end + 1;
    }
  } else {
    for (const char c : rest) {
      const unsigned digit = c <= '9' ? static_cast<unsigned>(c - '0') : static_cast<unsigned>((c | 32) - 'a' + 10);
      multiply_add(digits, base, digit);
    }
  }
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  std::reverse(digits.begin(), digits.end());
  return negative && digits != "0" ? "-" + digits : digits;
}

/// Text as a double, with a point for the decimal point whatever the locale.
inline double to_double(const std::string& text) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(text.c_str(), nullptr, plain);
}

inline double real_value(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  const double sign = text[0] == '-' ? -1.0 : 1.0;
  const std::string rest(without_sign(text));
  if (rest.size() == 4 && (rest[1] | 32) == 'i') return sign * HUGE_VAL;
  if (rest.size() == 4 && (rest[1] | 32) == 'n') return std::nan("");
  if (rest.find(':') == std::string::npos) return sign * to_double(rest);
  double value = 0, base = 1;
  for (std::size_t end = rest.size();;) {
    const std::size_t colon = rest.rfind(':', end - 1);
    const std::size_t from = colon == std::string::npos ? 0 : colon + 1;
    value += to_double(rest.substr(from, end - from)) * base;
    base *= 60;
    if (from == 0) return sign * value;
    end = colon;
  }
}

inline bool one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

/// Builds values from events, without recursion, so that every bound is checked while reading.
class YamlBuilder {
 public:
  YamlBuilder(std::string_view text, std::string name) : name_(std::move(name)) {
    if (!yaml_parser_initialize(&parser_)) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    const char* begin = text.empty() ? "" : text.data();
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(begin), text.size());
  }
  YamlBuilder(const YamlBuilder&) = delete;
  YamlBuilder& operator=(const YamlBuilder&) = delete;
  ~YamlBuilder() { yaml_parser_delete(&parser_); }

  Value document() {
    int documents = 0;
    for (bool more = true; more;) {
      Event event(*this);
      switch (event.get.type) {
        case YAML_DOCUMENT_START_EVENT:
          if (++documents > 1) refuse(event, "several documents in one file");
          break;
        case YAML_MAPPING_START_EVENT:
          begin(event, event.get.data.mapping_start.tag, event.get.data.mapping_start.anchor, Value::Kind::mapping);
          break;
        case YAML_SEQUENCE_START_EVENT:
          begin(event, event.get.data.sequence_start.tag, event.get.data.sequence_start.anchor, Value::Kind::list);
          break;
        case YAML_MAPPING_END_EVENT:
        case YAML_SEQUENCE_END_EVENT: end(event); break;
        case YAML_SCALAR_EVENT: scalar(event); break;
        case YAML_ALIAS_EVENT: alias(event); break;
        case YAML_STREAM_END_EVENT: more = false; break;
        default: break;
      }
    }
    return std::move(root_);
  }

 private:
  struct Event {
    explicit Event(YamlBuilder& builder) {
      if (!yaml_parser_parse(&builder.parser_, &get)) builder.unreadable();
    }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() { yaml_event_delete(&get); }
    std::size_t line() const { return get.start_mark.line + 1; }
    yaml_event_t get;
  };

  struct Open {
    Value value;
    std::string anchor;
    std::size_t start;   // the count of values when it began
    std::size_t weight;  // the count of characters when it began
    std::size_t height = 1;
    bool has_key = false;
    Value key;
    std::unordered_set<std::string> keys;
  };

  struct Anchored {
    Value value;
    std::size_t size;
    std::size_t weight;
    std::size_t height;
  };

  [[noreturn]] void unreadable() {
    const std::string problem = parser_.problem ? parser_.problem : "out of memory";
    if (parser_.error == YAML_READER_ERROR) {
      throw BundleError(name_ + ": not readable as YAML: unacceptable character #x" +
                        hex(static_cast<char32_t>(parser_.problem_value), 4) + ": " + problem +
                        "\n  in \"<unicode string>\", position " + std::to_string(parser_.problem_offset) + ".");
    }
    throw BundleError(name_ + ", line " + std::to_string(parser_.problem_mark.line + 1) + ": not readable as YAML: " + problem +
                      ".");
  }

  [[noreturn]] void refuse(const Event& event, const std::string& what) const {
    throw BundleError(name_ + ", line " + std::to_string(event.line()) + ": " + what + ".");
  }

  void refuse_tag(const Event& event, const yaml_char_t* tag) const {
    if (tag == nullptr) return;
    refuse(event,
           "the tag " + repr_text(reinterpret_cast<const char*>(tag)) + " is not allowed, a bundle holds plain data only");
  }

  void grow(const Event& event, std::size_t by, std::size_t characters) {
    count_ += by;
    weight_ += characters;
    if (weight_ > max_text) refuse(event, "more than " + std::to_string(max_text) + " characters, aliases included");
    if (count_ > max_values) refuse(event, "more than " + std::to_string(max_values) + " values, aliases included");
  }

  /// How many characters a scalar has; Python counts those, not bytes.
  static std::size_t characters(const Event& event) {
    const auto* begin = event.get.data.scalar.value;
    return static_cast<std::size_t>(
        std::count_if(begin, begin + event.get.data.scalar.length, [](yaml_char_t byte) { return (byte & 0xc0) != 0x80; }));
  }

  static std::string anchor_text(const yaml_char_t* anchor) {
    return anchor == nullptr ? "" : reinterpret_cast<const char*>(anchor);
  }

  void begin(const Event& event, const yaml_char_t* tag, const yaml_char_t* anchor, Value::Kind kind) {
    refuse_tag(event, tag);
    if (stack_.size() >= max_depth) refuse(event, "nested deeper than " + std::to_string(max_depth) + " levels");
    grow(event, 1, 0);
    Open open{{}, anchor_text(anchor), count_, weight_, 1, false, {}, {}};
    open.value.kind = kind;
    open.value.line = event.line();
    stack_.push_back(std::move(open));
  }

  void end(const Event& event) {
    Open closed = std::move(stack_.back());
    stack_.pop_back();
    if (!closed.anchor.empty()) {
      anchors_[closed.anchor] = {closed.value, count_ - closed.start + 1, weight_ - closed.weight, closed.height};
    }
    put(std::move(closed.value), event, closed.height);
  }

  void scalar(const Event& event) {
    const auto& data = event.get.data.scalar;
    const std::size_t length = characters(event);
    grow(event, 1, length);
    Value value = scalar_value(event);
    value.line = event.line();
    const std::string anchor = anchor_text(data.anchor);
    if (!anchor.empty()) anchors_[anchor] = {value, 1, length, 0};
    put(std::move(value), event);
  }

  Value scalar_value(const Event& event) const {
    const auto& data = event.get.data.scalar;
    refuse_tag(event, data.tag);
    Value value;
    value.text.assign(reinterpret_cast<const char*>(data.value), data.length);
    value.kind = Value::Kind::text;
    if (!data.plain_implicit) return value;
    const std::string_view text = value.text;
    if (text == "<<") refuse(event, "merge keys (<<) are not supported, write the keys out");
    if (one_of(text, {"", "~", "null", "Null", "NULL"})) return Value{};
    if (one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) return truth(true);
    if (one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) return truth(false);
    const bool integer = looks_integer(text), real = !integer && looks_real(text);
    if (!integer && !real) return value;
    if (text.size() > max_number) refuse(event, "a number of " + std::to_string(text.size()) + " characters");
    if (real) {
      value.real = real_value(std::move(value.text));
      value.kind = Value::Kind::real;
      value.text.clear();
      return value;
    }
    std::string digits = integer_text(value.text);
    if (digits.empty()) refuse(event, repr_text(text.substr(0, 40)) + " is not a usable int");
    value.kind = Value::Kind::integer;
    value.text = std::move(digits);
    return value;
  }

  static Value truth(bool is) {
    Value value;
    value.kind = Value::Kind::boolean;
    value.boolean = is;
    return value;
  }

  void alias(const Event& event) {
    const std::string anchor = anchor_text(event.get.data.alias.anchor);
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) refuse(event, "the alias *" + anchor + " refers to nothing before it");
    grow(event, found->second.size, found->second.weight);
    if (stack_.size() + found->second.height > max_depth) {
      refuse(event, "nested deeper than " + std::to_string(max_depth) + " levels");
    }
    put(found->second.value, event, found->second.height);
  }

  void put(Value value, const Event& event, std::size_t height = 0) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return;
    }
    Open& parent = stack_.back();
    parent.height = std::max(parent.height, height + 1);
    if (parent.value.is(Value::Kind::list)) {
      parent.value.items.push_back(std::move(value));
    } else if (!parent.has_key) {
      if (value.is(Value::Kind::list) || value.is(Value::Kind::mapping)) refuse(event, "a key must be a single value");
      const std::string same = identity(value);
      if (!parent.keys.insert(same).second) refuse(event, "the key " + repr(value) + " appears twice");
      parent.key = std::move(value);
      parent.has_key = true;
    } else {
      parent.value.entries.emplace_back(std::move(parent.key), std::move(value));
      parent.has_key = false;
    }
  }

  std::string name_;
  yaml_parser_t parser_{};
  std::vector<Open> stack_;
  std::map<std::string, Anchored> anchors_;
  std::size_t count_ = 0;
  std::size_t weight_ = 0;
  Value root_;
};

}  // namespace detail

/// Read one YAML document.
///
/// Duplicate keys, tags, merge keys, keys that are not scalars, runaway aliases, deep nesting and several documents are
/// refused. Dates stay text. `name` is the file, for messages.
inline Value parse_yaml(std::string_view text, const std::string& name) { return detail::YamlBuilder(text, name).document(); }

}  // namespace leapp
